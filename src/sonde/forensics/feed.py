"""The micro-batches of a training by the number of the update that takes them: of the next one, and of any other.

An update takes `update_freq` micro-batches, fewer at the end of an epoch, exactly as the training loop does. To find those of another update,
the data goes to the nearest checkpoint's position and on from there; a `TokenLoader` passes over batches without reading them, other data
is read along the way. Afterwards it stands where it stood.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.state import join_state
from sonde.data.loader import TokenLoader, left_out_of
from sonde.errors import DamagedFile, SettingError
from sonde.forensics.history import LaterSkip
from sonde.train.task import TrainingData, grouped


@final
class Feed:
    """Hands out the micro-batches of one rank, update by update."""

    def __init__(
        self, data: TrainingData, folder: CheckpointFolder, *, update_freq: int, skips: Sequence[LaterSkip] = ()
    ) -> None:
        """`data` stands at the beginning and leaves out what its last start did; `skips` says since when."""
        self._data = data
        self._skips = skips
        self._left_out = data.sampler.left_out if isinstance(data, TokenLoader) else None
        self._folder = folder
        self._update_freq = update_freq
        self._known: dict[int, Mapping[str, Any]] = {0: dict(data.state_dict())}
        self._groups: Iterator[list[Any]] | None = None

    def take(self, step: int) -> list[Any]:
        """The micro-batches of the next update, which is `step`; the position moves."""
        self._leave_out(step)
        for _ in range(2):  # an epoch that has ended is followed by the next
            if self._groups is None:
                self._groups = grouped(self._data, self._update_freq)
            for group in self._groups:
                return group
            self._groups = None
        raise SettingError("the training data gives no batches")

    def moved(self, num_updates: int) -> None:
        """The position was set from outside to the one after this many updates."""
        self._groups = None
        self._known[num_updates] = dict(self._data.state_dict())

    def batches(self, step: int) -> list[Any]:
        """The micro-batches of update `step`. The position stays."""
        before = dict(self._data.state_dict())
        self._groups = None
        try:
            done = self._go_near(step - 1)
            while done < step - 1:
                self._pass_over()
                done += 1
            self._known[done] = dict(self._data.state_dict())
            self._leave_out(step)
            for group in grouped(self._data, self._update_freq):
                return group
        finally:
            self._data.load_state_dict(before)
        raise SettingError("the training data gives no batches")

    def _leave_out(self, step: int) -> None:
        """Leave out what was left out when the run made this step."""
        data = self._data
        if not isinstance(data, TokenLoader) or self._left_out is None or not self._skips:
            return
        later = [left_out_of(data.dataset, one.samples) for one in self._skips if not one.is_in_force(step)]
        data.sampler.left_out = np.setdiff1d(self._left_out, np.concatenate([np.zeros(0, np.int64), *later]))

    def _go_near(self, num_updates: int) -> int:
        """Go to the nearest known position that is not later; returns after how many updates it is."""
        known = max(done for done in self._known if done <= num_updates)
        for step in reversed([one for one in self._folder.steps() if known < one <= num_updates]):
            try:
                state = join_state(self._folder.document(step)["state"]["data"], {})
            except (DamagedFile, KeyError, TypeError):
                continue
            self._known[step] = state
            known = step
            break
        self._data.load_state_dict(self._known[known])
        return known

    def _pass_over(self) -> None:
        """Go on by one update."""
        data = self._data
        if not isinstance(data, TokenLoader):
            next(grouped(data, self._update_freq), None)
            return
        epoch = data.position.epoch
        for _ in range(self._update_freq):
            data.sampler.advance()
            if data.position.epoch != epoch:
                return
