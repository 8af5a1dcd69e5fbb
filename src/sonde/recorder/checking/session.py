"""The two ways into a check: a script that was started for it, and a call in a notebook.

A script that `sonde check` started makes its first updates for real, in a run directory of its own
that is thrown away. Then everything is put back, the experiments run, the report is the answer to
the order (records/replay_order.py), and the process ends. In a notebook, the updates are made here,
and undone.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final

import torch

from sonde import ranks
from sonde.errors import SettingError, SondeError
from sonde.forensics.checks.check_report import CheckReport
from sonde.recorder.checking.bench import Bench, feed_of
from sonde.recorder.checking.checker import Checker, fits_in_memory
from sonde.recorder.checking.first_steps import NUM_UPDATES, FirstSteps
from sonde.recorder.checking.forward_watch import ForwardWatch
from sonde.recorder.checking.snapshot import Reach, Snapshot, undone
from sonde.recorder.guard import ProcessEnds
from sonde.recorder.hooks import NOBODY, Observer
from sonde.recorder.moment import back_at, take_moment
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch, Update
from sonde.records.replay_order import order_of_process, write_answer

_MAX_CALLS: Final = 64
"""How many batches of a notebook are used at most."""

_logger = logging.getLogger("sonde")


class CheckSession:
    """A check in a process that was started for it."""

    def __init__(self, training: Training, first: FirstSteps) -> None:
        self._training = training
        self._first = first
        self._reach: Reach | None = None
        self._snapshot: Snapshot | None = None
        self._is_done = False

    @property
    def has_begun(self) -> bool:
        """Whether a step function was seen."""
        return self._snapshot is not None

    def before_batch(self, train_step: Callable[..., Any]) -> None:
        """Before the first batch, remember everything; after the first updates, make the check and
        end the process.
        """
        training = self._training
        training.step_function = train_step
        if self._snapshot is None:
            self._reach = Reach(training)
            fits = not ranks.any_rank(not fits_in_memory(self._reach.parameters()))
            self._snapshot = Snapshot(training, self._reach, with_weights=fits)
            if ranks.rank() == 0:
                _logger.info("sonde check: the script makes its first %d updates", NUM_UPDATES)
        if self._first.is_over:
            self.finish()
            raise ProcessEnds(0)

    def finish(self) -> None:
        """Make the check with the updates that there were, and answer. A second call does
        nothing.
        """
        if self._is_done or self._snapshot is None:
            return
        self._is_done = True
        report = _check(self._training, self._first, self._snapshot)
        order = order_of_process()
        if order is not None and ranks.rank() == 0:
            directory = str(self._training.run.asked_for.absolute())
            write_answer(order, {"check": report.document(), "directory": directory})

    def failed(self, error: BaseException, batch: Any) -> None:
        """Answer that the script's own step failed."""
        order = order_of_process()
        if order is None or self._is_done or isinstance(error, SystemExit):
            return
        self._is_done = True
        reason = f"{type(error).__name__}: {error}"[:500]
        number = self._first.num_updates + 1
        write_answer(
            order,
            SondeError(
                f"step {number} failed before it could be checked: {reason}",
                cause=self._tokens_too_large(batch),
            ),
        )

    def _tokens_too_large(self, batch: Any) -> str | None:
        """Return which token has no embedding; None if each has one."""
        training = self._training
        watch = ForwardWatch()
        with ExitStack() as stack:
            stack.enter_context(suppress(BaseException))  # it has just failed, and fails again
            stack.enter_context(undone(training, Reach(training)))
            stack.enter_context(training.hooks.observed_by(NOBODY))
            stack.enter_context(watch)
            training.call(batch, None)
        for lookup in watch.look.lookups:
            largest = int(lookup.ids.max()) if lookup.ids.numel() else 0
            if largest >= lookup.num_embeddings:
                return (
                    f"token {largest} is looked up in an embedding of {lookup.num_embeddings} rows,"
                    f" whose last is {lookup.num_embeddings - 1}"
                )
        return None


class _Collector(Observer):
    """Hands what the hooks see to `FirstSteps`."""

    def __init__(self, first: FirstSteps) -> None:
        self.has_moved = False
        self._first = first
        self._norm: Any = None

    def norm_seen(self, norm: Any) -> None:
        self._norm = norm

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._first.before_step(optimizer, self._norm)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        del optimizer
        self.has_moved = True


def check_here(
    training: Training, batches: Iterable[Any], train_step: Callable[..., Any] | None
) -> CheckReport:
    """Check a training with some batches, and leave no trace."""
    if train_step is not None:
        training.step_function = train_step
    if training.step_function is None:
        raise SettingError(
            "there is no step function to check",
            hint="call recorder.check(batches, train_step)",
        )
    taken = _first_of(batches)
    if not taken:
        raise SettingError("there is no batch to check with")
    first = FirstSteps(training, is_thorough=True)
    reach = Reach(training)
    run = training.run
    was_replay = run.is_replay
    with undone(training, reach, with_weights=True) as snapshot:
        _make_updates(training, taken, first)
        first.close()
        checker = Checker(Bench(training, first.updates), first)
        checker.watch_updates(snapshot.weights)
    try:
        run.is_replay = True  # hosts make whole updates then
        return checker.run()
    finally:
        run.is_replay = was_replay


def _check(training: Training, first: FirstSteps, snapshot: Snapshot) -> CheckReport:
    """Make the check after the first updates, beginning with the state before them."""
    first.close()
    checker = Checker(Bench(training, first.updates), first)
    checker.watch_updates(snapshot.weights)
    snapshot.put_back()
    training.run.is_replay = True  # hosts make whole updates from here on
    return checker.run()


def _first_of(batches: Iterable[Any]) -> list[Any]:
    found = []
    for batch in batches:
        found.append(batch)
        if len(found) == _MAX_CALLS:
            break
    return found


def _make_updates(training: Training, batches: list[Any], first: FirstSteps) -> None:
    update: Update | None = None
    for batch in batches:
        if first.is_over:
            return
        moment = take_moment(training.device_type, with_host=True)
        micro = MicroBatch(batch, moment, last=None, copied=True)
        if update is None:
            update = Update(first.num_updates + 1, had_gradients=False)
        update.add(micro)
        collector = _Collector(first)
        given = feed_of(micro).batch()
        with training.hooks.observed_by(collector), back_at(moment, training.device_type):
            training.call(given, None)
        if collector.has_moved:
            update.note_rates(training.optimizer)
            first.end_update(update)
            update = None
