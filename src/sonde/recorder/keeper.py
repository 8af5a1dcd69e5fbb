"""Keep the states and batches of one rank: written in the background, within a disk budget, so that
steps can be replayed later.

States go through the checkpoint store to RUN/flight/states, batches to RUN/flight/batches-*. One
worker writes the batches of an update and only then its record and log line, so every recorded step
can be replayed. It polls every 20 ms, so that the training thread does not have to wake it at each
step. Training waits only for the copy of a state, and for the first state to be on disk.

A full or slow disk reduces what is kept but never stops training. What is missing is told once.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final

from sonde import ranks
from sonde.checkpoint.folder import About, Keep
from sonde.checkpoint.store import BackgroundSaver
from sonde.errors import SondeError
from sonde.recorder import budget
from sonde.recorder.batch_file import BatchFile, batch_path, encode_update
from sonde.recorder.budget import StatePlan
from sonde.recorder.guard import PASSES, Guard
from sonde.recorder.kept_folder import KeptFolder
from sonde.recorder.memory import MemoryWatch, bytes_of, device_of
from sonde.recorder.moment import set_generators
from sonde.recorder.state_schedule import StateSchedule
from sonde.recorder.training import Training, is_initialised
from sonde.recorder.update import Update
from sonde.recorder.vitals_book import VitalsBook
from sonde.records.journal import StepRecord
from sonde.records.layout import STEPS
from sonde.records.worker import Worker
from sonde.train.determinism import generators, generators_restored

_NUM_EVENTS: Final = 2
"""Of how many events the state before is kept, and the one before that, beside regular ones."""
_WRITE_SECONDS: Final = 0.02
"""How often, in seconds, pending data is written."""
_NUM_FILES: Final = 16
"""A file of batches takes at most the budget divided by this and by the number of ranks, so that
the oldest can be removed one by one.
"""
_MAX_WAITING: Final = 4096
_MAX_WAITING_BYTES: Final = 512 << 20
"""The maximum size of batches waiting for a slow disk; further ones are not kept until it has
caught up.
"""

_logger = logging.getLogger("sonde")


class Keeper:
    """Keeps the states and batches of one rank."""

    def __init__(self, training: Training, guard: Guard) -> None:
        """Every rank must create one."""
        self._training = training
        self._guard = guard
        self._run = training.run
        self._options = training.options
        self._folder = training.run.layout.kept
        self.store = training.store
        self._kept = KeptFolder(self._run, self.store.folder, self._options.max_bytes, guard)
        self._event_steps: list[int] = []
        keep = Keep(newest=self._options.keep_states)
        self._saver = BackgroundSaver(self.store, keep, protected=self._event_steps)
        self.worker = Worker("sonde-recorder", on_error=self._on_error, poll_seconds=_WRITE_SECONDS)
        """Writes batches and records."""
        self.memory = MemoryWatch(device_of(training.model))
        """The memory of this process and its GPU, read by the worker."""
        self._vitals = VitalsBook()
        self._file: BatchFile | None = None
        self._bytes_each = 0
        self._written_each = 0
        self._max_file_bytes = self._options.max_bytes // (_NUM_FILES * self._run.world_size)
        self._start = self._run.manifest.num_starts if self._run.rank == 0 else 0
        self._start = max(ranks.gather(self._start))
        self._keeps_batches = self._options.max_bytes > 0
        self.schedule = StateSchedule(self._options, self._run)
        """How often states are kept."""
        self.num_states = self._options.keep_states
        """How many regular states are kept."""
        self.keeps_states = self.schedule.every > 0 and self._keeps_batches
        """Whether states are kept; False if a single one exceeds the budget."""
        self.plan: StatePlan | None = None
        """What the budget allows; None as long as no state was to be kept."""
        self._has_started = False
        self.copies_batches = False
        """Whether the loop overwrites its batches; then each is copied when it begins."""
        self.on_written: Callable[[Update, Mapping[str, float]], None]
        self.on_written = lambda _update, _vitals: None
        """Called in the worker with every update whose record is written, and its vitals."""
        self.on_kept: Callable[[int, Update | None], None] = lambda _step, _update: None
        """Called when a state is kept: with its number of updates, and the update before which an
        event began.
        """

    def has_work_at(self, num_updates: int) -> bool:
        """Return whether `keep_state` is to be called after `num_updates` updates: a state is due,
        batches are to be kept from there on, or how often states are kept is to be planned anew.
        """
        if not self._has_started:
            keeps_any = self.keeps_states or self._keeps_batches
            return keeps_any and is_initialised(self._training.model)
        if not self.keeps_states:
            return False
        schedule = self.schedule
        return num_updates % schedule.every == 0 or num_updates == schedule.check_at

    def keep_state(self, num_updates: int, *, before: Update | None = None) -> None:
        """At a point where a state may be kept: keep it, or only plan anew. Every rank must call
        this.

        The state is that after `num_updates` updates.
        `before` is the current update, at which an event began and which has not been applied yet.
        """
        is_first = not self._has_started
        self._has_started = True
        if not self.keeps_states:
            if is_first:  # the script's own checkpoints are the states
                self.worker.do(partial(self._open, num_updates))
            return
        if before is not None:
            self._protect(num_updates)
        elif not is_first and not self.schedule.is_due(num_updates):
            self._adapt(num_updates, tells=True)  # by now it is known how long a step takes
            return
        started = perf_counter()
        if before is None:
            # Batches from here on go to a new file.
            self.worker.do(partial(self._open, num_updates))
            if ranks.any_rank(self._saver.is_busy):
                self._skip(num_updates)
                return
        self._report()
        state = _collected(self._training, self._guard, before)
        self.keeps_states = state is not None
        if state is None or not self._plan_for(state):
            return
        if is_first:
            started = perf_counter()  # what is done once is no part of what a state costs
        copying = self._save(num_updates, state, before)
        stall = perf_counter() - started
        if is_first:
            assert self.plan is not None
            self._saver.wait()
            self._report()
            stall += _copy_again(self._training, num_updates, state, copying) - copying
            stall *= self.plan.state_bytes / max(budget.bytes_held(state), 1)
        if before is None:
            self.schedule.kept(num_updates, stall, is_first=is_first)
            if not is_first:
                self._adapt(num_updates, tells=True)

    def _save(self, num_updates: int, state: dict[str, Any], before: Update | None) -> float:
        """Copy a state, so that it is written in the background. Returns how long the copy took."""
        started = perf_counter()
        if ranks.rank() == 0 or self._training.is_sharded:
            try:
                self._saver.save(num_updates, state, About(run_id=self.store.folder.run_id))
            except Exception as error:  # noqa: BLE001  the other ranks wait below
                self._guard.catch("a state was not kept", error)
        seconds = perf_counter() - started
        self.on_kept(num_updates, before)
        return seconds

    def plan_states(self, num_updates: int) -> None:
        """Plan how often states are kept, after the first update. Every rank must call this. Waits
        for the worker.
        """
        if self.keeps_states and self.plan is not None:
            self.worker.flush()
            self._adapt(num_updates, tells=False)

    def _adapt(self, num_updates: int, *, tells: bool) -> None:
        """Keep as many states, and as often, as time and disk allow by what was measured."""
        assert self.plan is not None
        self.num_states = self.schedule.adapt(
            num_updates, self.plan, self._written_each, tells=tells
        )
        self._saver.keep = Keep(newest=self.num_states)

    def _skip(self, num_updates: int) -> None:
        """Keep no state, because the one before is still being written."""
        self._guard.tell(
            "busy",
            f"the state after {num_updates} steps is not kept: the disk is still writing the one"
            " before",
        )
        self.schedule.slow_down(num_updates)

    def _protect(self, num_updates: int) -> None:
        """Keep the state before an event, and the one before that: made again from it, the first
        shows whether anything but the optimizer has changed it.
        """
        earlier = [step for step in self.store.folder.steps() if step < num_updates]
        self._event_steps += [*earlier[-1:], num_updates]
        del self._event_steps[: -2 * _NUM_EVENTS]

    def begin_again(self) -> None:
        """Start the next update with a kept state and a new batch file, as after a restart."""
        self._has_started = False

    def put(self, update: Update) -> None:
        """Queue an update for writing: its batches, and its record if its loss is known."""
        num_waiting = len(self.worker)
        num_bytes = num_waiting * self._bytes_each
        is_slow = num_waiting > _MAX_WAITING or num_bytes > _MAX_WAITING_BYTES
        if is_slow:
            self._guard.tell("slow", "batches are not kept for a while: the disk is too slow")
        keeps = self._keeps_batches and self._has_started and not is_slow
        self.worker.do(partial(self._write, update, keeps))

    def vitals_so_far(self) -> list[tuple[int, Mapping[str, float]]]:
        """Return the vitals of the last steps at which they were measured. At a scene only: waits
        for the worker.
        """
        if not self._options.vitals:
            return []
        self.worker.flush()
        return list(self._vitals.history)

    def flush(self) -> None:
        """Write everything that waits."""
        self.worker.flush()
        self._saver.wait()
        self._report()

    def close(self) -> None:
        """Write everything and end the threads."""
        self.worker.close()
        self._saver.close()
        self._report()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, update: Update, keeps_batches: bool) -> None:
        """Write an update: its batches first, if they are kept, and then its record."""
        if keeps_batches and self._file is not None:
            self._add(self._file, update)
        record = _record_of(update, self._vitals.note(update))
        if record is not None:
            self._write_record(update, record)
        update.is_written = True

    def _write_record(self, update: Update, record: StepRecord) -> None:
        if self._run.rank == 0:
            self._run.records(STEPS).append(record.as_record())
        memory = self.memory.sample(record.step)
        self.on_written(update, record.values)
        every = self._options.log_every
        if every and memory:
            self._run.logger.log(step=record.step, data=memory)
        if every and (record.step % every == 0 or record.values):
            numbers = {"loss": record.loss, "lr": record.lr, "grad_norm": record.grad_norm}
            data = {f"train.{name}": value for name, value in numbers.items() if value is not None}
            data |= {f"train.{name}": value for name, value in record.values.items()}
            self._run.logger.log(step=record.step, data=data)

    def _add(self, file: BatchFile, update: Update) -> None:
        """Append the batches of an update to the file, if possible. Never raises, because the step
        record must still be written.
        """
        try:
            _check(update)
            pieces = encode_update(update, self._start)
            if not all(micro.is_whole() for micro in update.micro):
                self.copies_batches = True
                raise ValueError("its tensors were written over after the step")
            tensors = [tensor for micro in update.micro for tensor in micro.tensors]
            self._bytes_each = sum(map(bytes_of, tensors))
            before = file.num_bytes
            file.append(pieces)
            self._written_each = file.num_bytes - before
            for micro in update.micro:
                micro.is_written = True
                micro.let_go_of_copies()
            if file.num_bytes > self._max_file_bytes:
                self._open(update.step)
        except OSError as error:
            self._tell_disk(error)
            with contextlib.suppress(OSError, SondeError):
                self._kept.thin()
        except Exception as error:  # noqa: BLE001  a user-defined batch may fail in any way
            message = f"the batch of step {update.step} cannot be kept: {error}"
            self._guard.tell("batch", f"{message}; such steps cannot be replayed")

    def _open(self, num_updates: int) -> None:
        """Start a new batch file, and remove files that no kept state needs."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self._keeps_batches:
            return
        try:
            self._kept.prune(self._event_steps, keeps_states=self.keeps_states)
            self._file = BatchFile(batch_path(self._folder, num_updates, self._run.rank))
        except OSError as error:
            self._tell_disk(error)

    def _tell_disk(self, error: OSError) -> None:
        reason = error.strerror or error
        self._guard.tell("batches", f"batches cannot be kept: {reason}; training goes on")

    def _on_error(self, error: Exception) -> None:
        self._guard.tell("failed", f"the recorder cannot write: {error!r}")

    def _plan_for(self, state: Mapping[str, Any]) -> bool:
        """Plan how many states of this size are kept, before the first is written. Returns False
        if a single one exceeds the budget: then none are kept any more. Every rank must call this.
        """
        size = budget.size_of_state(state, self._training.optimizer)
        self.plan = budget.plan_states(size, self._options)
        if not ranks.any_rank(not self.plan.num_states):
            self.num_states = min(self.num_states, self.plan.num_states)
            self._saver.keep = Keep(newest=self.num_states)
            return True
        self.keeps_states = False
        self._guard.tell(
            "budget",
            f"no states are kept: one takes {budget.size_in_words(size)}, and max_bytes allows"
            f" {budget.size_in_words(self._options.max_bytes)}",
        )
        return False

    @property
    def is_sharded(self) -> bool:
        """Whether every rank has only a part of a state."""
        return self._training.is_sharded

    def bytes_per_update(self) -> int:
        """Return how much is written for the batches of an update; 0 if none was written yet. For
        the opening only: waits for the worker.
        """
        self.worker.flush()
        return self._written_each

    def _report(self) -> None:
        for outcome in self._saver.finished():
            if outcome.error is not None:
                self._guard.tell(
                    "state", f"the state after {outcome.step} steps was not kept: {outcome.error}"
                )
                self._kept.thin()


def _copy_again(
    training: Training, num_updates: int, state: dict[str, Any], copying: float
) -> float:
    """Copy a state once more, and return how long that takes: the first copy, which took `copying`
    seconds, had to get its memory, and those to come find it there.
    """
    if ranks.rank() != 0 or training.is_sharded:
        return copying
    started = perf_counter()
    store = training.store
    try:
        store.snapshot(num_updates, state, About(run_id=store.folder.run_id))
    except (OSError, SondeError):
        return copying  # the first one has failed too, and has said so
    return perf_counter() - started


def _collected(training: Training, guard: Guard, before: Update | None) -> dict[str, Any] | None:
    """Return the state of the training; None if a rank cannot give it. Every rank must call
    this.
    """
    state = None
    with generators_restored():
        if before is not None and before.micro:
            # The generators as they were when the update began.
            set_generators(before.micro[0].moment, training.device_type)
        try:
            state = training.collect_own()
        except PASSES:
            raise
        except BaseException as error:  # noqa: BLE001  a state_dict of the user's may do anything
            guard.catch("states are not kept, so steps cannot be replayed", error)
        if ranks.any_rank(state is None):
            return None
        assert state is not None
        return {**state, "ranks": ranks.gather(generators())}


def _check(update: Update) -> None:
    """Raise if the batches of an update would not make it again."""
    problems = [micro.tree.problem for micro in update.micro if micro.tree.problem]
    if update.cannot_replay:
        raise ValueError(update.cannot_replay)
    if problems:
        raise ValueError(f"it holds {problems[0]}")


def _record_of(update: Update, vitals: Mapping[str, float]) -> StepRecord | None:
    """Return the record of an update; None if its loss is not known."""
    if update.loss is None:
        return None
    return StepRecord(
        step=update.step,
        loss=update.loss,
        weight=float(update.num_tokens),
        grad_norm=update.grad_norm,
        lr=update.lr,
        skipped=update.skipped,
        values=vitals,
    )
