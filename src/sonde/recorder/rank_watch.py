"""Compare the ranks of a training every 200 updates: are their weights still the same, and does one
lag? All ranks look in the same update; between looks nothing is exchanged and nothing is read.

A look reads a sample of up to 12 tensors and gathers a few hundred bytes. Sharded weights are not
compared. One process costs nothing.
"""

from statistics import median
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.checkpoint.digest import hash_of
from sonde.recorder.guard import PASSES, Guard, guarded
from sonde.recorder.quiet import QuietLook
from sonde.recorder.training import Training
from sonde.recorder.update import UpdateClock
from sonde.spikes.rank_signs import RankLook, RankSigns

_EVERY: Final = 200
_FIRST: Final = 8
"""The first look is after this many updates."""
_NUM_TENSORS: Final = 12
_MIN_TIMES: Final = 6
"""Fewer updates do not say how long one usually takes."""


class RankWatch:
    """Compares the ranks of one training."""

    def __init__(self, training: Training, quiet: QuietLook, guard: Guard) -> None:
        """`quiet` tells what is found. Every rank must create one."""
        self.guard = guard
        self._training = training
        self._quiet = quiet
        self.is_on = ranks.world_size() > 1
        """Whether there is another rank to compare with."""
        self._signs = RankSigns()
        self._seconds: list[float] = []

    def note(self, clock: UpdateClock) -> None:
        """Note how long the update that has just ended took to its loss."""
        seconds = clock.seconds_to_loss()
        if seconds is not None:
            self._seconds.append(seconds)

    def begin_update(self, num_updates: int) -> None:
        """Compare the ranks if it is time. Every rank must call this."""
        if num_updates == _FIRST or (num_updates and num_updates % _EVERY == 0):
            self._look(num_updates)

    @guarded("the ranks are not compared")
    def _look(self, num_updates: int) -> None:
        """Gather the digests and times of all ranks, and tell what is wrong with them."""
        own: Any = None
        try:
            own = [self._digests(), self._usual_seconds()]
        except PASSES:
            raise
        except Exception as error:  # noqa: BLE001  the other ranks wait below
            self.guard.catch("the weights of the ranks are not compared", error)
        gathered = ranks.gather(own)
        if any(found is None for found in gathered):
            return
        looks = [RankLook(digests, seconds) for digests, seconds in gathered]
        are_replicas = _are_replicas(self._training.model)
        for finding in self._signs.observe(num_updates, looks, are_replicas=are_replicas):
            self._quiet.tell(finding, None)

    def _usual_seconds(self) -> float | None:
        seconds = self._seconds
        self._seconds = []
        # The median: evaluations and checkpoints of one rank alone do not count.
        return median(seconds) if len(seconds) >= _MIN_TIMES else None

    @torch.no_grad()
    def _digests(self) -> dict[str, str]:
        """Return the digests of some weights, evenly spread over the model."""
        if self._training.is_sharded:
            return {}
        model = self._training.model
        left_out: set[str] = set()
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                left_out |= set(module.parameters_to_ignore)
        known = []
        for name, parameter in model.named_parameters():
            plain = name.removeprefix("_orig_mod.").removeprefix("module.")
            if parameter.requires_grad and plain not in left_out:
                known.append((plain, parameter))
        stride = max(1, -(-len(known) // _NUM_TENSORS))
        return {name: hash_of(parameter) for name, parameter in known[::stride]}


def _are_replicas(model: nn.Module) -> bool:
    """Return whether the weights must be the same on all ranks."""
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return bool(module.process_group.size() == ranks.world_size())
    return False
