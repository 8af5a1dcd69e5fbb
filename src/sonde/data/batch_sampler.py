"""Which batches a rank takes, and in which order: a `batch_sampler` for any DataLoader.

The order of an epoch is a shuffle of all batches by (seed, epoch), the same on every rank. In each round rank k of S takes
the k-th of the next S batches; when the last round has fewer, the ranks that go without get an empty list, which the
collater turns into a batch of weight zero: every rank makes the same number of steps, and no sample is seen twice.

Samples on a skip list are taken out of their batches; the batches stay where they are, so that skipping moves nothing else.
Starting in the middle costs what starting at the front costs: a shuffle of the batch numbers, milliseconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.batching import Batches, epoch_order
from sonde.errors import SettingError

_VERSION: Final = 1


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a run stands in its data: the next batch, by epoch and by batches done over all ranks together.

    All ranks hold the same position. It does not say how many ranks there are, so that a run may resume with another number of them.
    """

    epoch: int = 1
    """Epochs count from 1."""
    offset: int = 0
    """Batches of this epoch that are done, over all ranks."""

    def __post_init__(self) -> None:
        if self.epoch < 1 or self.offset < 0:
            raise SettingError(f"epochs count from 1 and batches from 0, not from {self.epoch} and {self.offset}")

    def after_round(self, num_shards: int, num_batches: int) -> "Position":
        """The position when every rank has taken one batch more; past the last batch it is the start of the next epoch."""
        offset = self.offset + num_shards
        if offset >= num_batches:
            return Position(epoch=self.epoch + 1)
        return Position(epoch=self.epoch, offset=offset)


@final
class ShardedBatchSampler:
    """The batches of one rank for the rest of the epoch at `position`. Iterating does not move the position.

    (A DataLoader asks for batches ahead of their use; only who uses them knows where a run stands. `TokenLoader` does.)
    """

    def __init__(
        self,
        batches: Batches,
        *,
        seed: int = 1,
        shuffle: bool = True,
        num_shards: int = 1,
        shard_id: int = 0,
        left_out: NDArray[np.int64] | None = None,
    ) -> None:
        if not 0 <= shard_id < num_shards:
            raise SettingError(f"there is no shard {shard_id} of {num_shards}", hint="shards count from 0")
        self.batches = batches
        """All batches of all ranks."""
        self.num_shards = num_shards
        """Ranks that share an epoch."""
        self.shard_id = shard_id
        """This one."""
        self.position = Position()
        """Where iteration starts."""
        self._seed = seed
        self._fingerprint = batches.fingerprint  # reads every sample number: once, not at each checkpoint
        self._shuffle = shuffle
        self.left_out = np.unique(left_out) if left_out is not None else np.zeros(0, np.int64)
        """Samples that are taken out of their batches; may be set between two batches."""

    def __len__(self) -> int:
        """Rounds left in the epoch."""
        return (len(self.batches) - self.position.offset + self.num_shards - 1) // self.num_shards

    def __iter__(self) -> Iterator[list[int]]:
        order = self.global_order(self.position.epoch)
        first = self.position.offset
        for round_start in range(first, len(order), self.num_shards):
            mine = round_start + self.shard_id
            yield self._samples(int(order[mine])) if mine < len(order) else []

    def global_order(self, epoch: int) -> NDArray[np.int64]:
        """The order of all batches in an epoch."""
        if not self._shuffle:
            return np.arange(len(self.batches), dtype=np.int64)
        return epoch_order(len(self.batches), seed=self._seed, epoch=epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch (from 1)."""
        self.position = Position(epoch=epoch)

    def advance(self) -> None:
        """Note that every rank has used one batch more."""
        self.position = self.position.after_round(self.num_shards, len(self.batches))

    def state_dict(self) -> dict[str, int]:
        """The position and what it is a position in: a few integers, the same on every rank."""
        return {
            "version": _VERSION,
            "epoch": self.position.epoch,
            "offset": self.position.offset,
            "seed": self._seed,
            "num_batches": len(self.batches),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position, with any number of ranks; refused when data, budget or seed are not those it was taken in."""
        own = self.state_dict()
        if state.keys() != own.keys() or state["version"] != _VERSION:
            raise SettingError(f"this is not the state of a batch sampler: it has {', '.join(state)}")
        for name in ("num_batches", "fingerprint", "seed"):
            if state[name] != own[name]:
                raise SettingError(
                    f"cannot resume: {name} was {state[name]} and is now {own[name]}",
                    cause="the position belongs to other batches",
                    hint="use the data, max_tokens, max_sentences, multiple_of and seed of the run, or start an epoch "
                    f"afresh with set_epoch({state['epoch'] + 1})",
                )
        if state["offset"] >= max(1, len(self.batches)):
            raise SettingError(f"cannot resume at batch {state['offset']} of {len(self.batches)}")
        self.position = Position(epoch=state["epoch"], offset=state["offset"])

    def _samples(self, batch: int) -> list[int]:
        samples = self.batches[batch]
        if len(self.left_out):
            samples = samples[~np.isin(samples, self.left_out)]
        result: list[int] = samples.tolist()
        return result
