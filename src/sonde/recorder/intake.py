"""How batches come in: each is held with the generators of its beginning, and named by the user.

The first few micro-batches, and the first after each kept state, are looked at more closely: do
steps draw from Python's or numpy's generators, and does the loop overwrite its batches? What costs
time at every step is done only where one of these is so.
"""

from collections.abc import Callable
from typing import Any, Final

from sonde.recorder.guard import Guard, guarded
from sonde.recorder.keeper import Keeper
from sonde.recorder.moment import host_generators, take_moment
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch, Update

_NUM_WATCHED: Final = 3
"""The number of micro-batches that are looked at closely at the beginning."""


class BatchIntake:
    """Takes the batches of one training in."""

    def __init__(
        self,
        training: Training,
        keeper: Keeper,
        guard: Guard,
        sample_ids: Callable[[Any], Any] | None,
    ) -> None:
        self.guard = guard
        self.draws_on_host = False
        """Whether steps draw from Python's or numpy's generators."""
        self._training = training
        self._keeper = keeper
        self._sample_ids = sample_ids
        self._num_to_watch = _NUM_WATCHED
        self.watched: MicroBatch | None = None
        """The last micro-batch, if it is looked at closely."""

    def look_again(self) -> None:
        """Look at the next batch closely: a state was kept, and replays begin with it."""
        self._num_to_watch = max(self._num_to_watch, 1)

    def take(self, update: Update, batch: Any, last: bool | None) -> None:
        """Add a batch to an update."""
        is_watched = self._num_to_watch > 0
        if is_watched:
            self._num_to_watch -= 1
        if self.watched is not None:
            self._look_at_the_last(self.watched)
        device_type = self._training.device_type
        moment = take_moment(device_type, with_host=is_watched or self.draws_on_host)
        copied = is_watched or self._keeper.copies_batches
        names = None
        if self._sample_ids is not None or type(batch) is dict:
            names = self.names_of(batch)
        try:
            micro = MicroBatch(batch, moment, last=last, names=names, copied=copied)
        except Exception as error:  # noqa: BLE001  a batch of the user's may do anything
            self.guard.catch("a batch could not be read, so its step cannot be replayed", error)
            micro = MicroBatch(None, moment, last=last)
            micro.tree.problem = "a batch that could not be read"
            update.cannot_replay = "its batch could not be read"
        if is_watched:
            self.watched = micro
            micro.awaits_comparison = True
        update.add(micro)

    def note_draws(self) -> None:
        """At the end of a micro-batch that is looked at closely, note whether Python's or numpy's
        generators have moved.
        """
        if self.watched is not None and not self.draws_on_host:
            self.draws_on_host = self.watched.moment.host != host_generators()

    @guarded("the names of samples are not recorded")
    def names_of(self, batch: Any) -> Any:
        """Return the names that the user gives the samples of a batch; None if there are none."""
        if self._sample_ids is not None:
            return self._sample_ids(batch)
        return batch.get("sample_ids") if type(batch) is dict else None

    def _look_at_the_last(self, watched: MicroBatch) -> None:
        """Find out whether the loop has overwritten the last micro-batch."""
        self.watched = None  # even if the look at it fails, it is the only one
        if not watched.is_untouched():
            self._keeper.copies_batches = True
        watched.awaits_comparison = False
        watched.let_go_of_copies()
