"""Keep the states and batches of one rank: written in the background, within a disk budget, so that steps can be replayed later.

States go through the checkpoint store to RUN/flight/states, batches to RUN/flight/batches-*. One thread writes the
batches of an update and only then its record and log line, so every recorded step can be replayed. The thread polls
every 20 ms, so that the training thread does not have to wake it at each step. Training waits only for the copy of a
state, and for the first state to be on disk.

A full or slow disk reduces what is kept but never stops training. What is missing is reported once.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Final

from sonde import ranks
from sonde.checkpoint.folder import About, Keep
from sonde.checkpoint.store import BackgroundSaver
from sonde.errors import SondeError
from sonde.flight.batch_file import BatchFile, batch_files, batch_path, encode_update
from sonde.flight.ring import Update, set_generators
from sonde.flight.training import Training
from sonde.records.journal import STEP
from sonde.records.layout import STEPS
from sonde.records.storage import storage_at
from sonde.train.determinism import generators_kept

_WRITE_SECONDS: Final = 0.02
"""How often, in seconds, pending data is written."""
_MAX_WAITING: Final = 4096
_MAX_WAITING_BYTES: Final = 512 << 20
"""The maximum size of batches waiting for a slow disk; further ones are not kept until it has caught up."""

_logger = logging.getLogger("sonde")


class Keeper:
    """Keeps the states and batches of one rank."""

    def __init__(self, training: Training) -> None:
        """Every rank must create one."""
        self._training = training
        self._run = training.run
        self._settings = settings = training.settings
        self._folder = training.run.layout.flight
        self.store = training.store
        self._event_steps: list[int] = []
        self._saver = BackgroundSaver(self.store, Keep(newest=settings.keep_states), protected=self._event_steps)
        self._queue: deque[Callable[[], object]] = deque()
        """What is to be written, in order."""
        self._writing = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: BatchFile | None = None
        self._bytes_each = 0
        self._told: set[str] = set()
        self.writer_seconds = 0.0
        """The CPU time of the writing thread, in seconds."""
        self.keeps_states = settings.state_every > 0
        """Whether states are kept; False if a single one exceeds the budget."""
        self._started = False
        self.copies_batches = False
        """Whether the loop overwrites its batches; then each is copied when it begins."""

    def is_due(self, num_updates: int) -> bool:
        """Return whether the state after `num_updates` updates should be kept."""
        return self.keeps_states and (not self._started or num_updates % self._settings.state_every == 0)

    def keep_state(self, num_updates: int, *, before: Update | None = None) -> None:
        """Keep the current state after `num_updates` updates. Every rank must call this.

        `before` is the current update, at which an event began and which has not been applied yet.
        """
        if not self.keeps_states:
            return
        first, self._started = not self._started, True
        if before is not None:
            self._event_steps.append(num_updates)
            del self._event_steps[: -self._settings.keep_event_states or None]
        else:
            self._queue.append(partial(self._open, num_updates))  # batches from here on go to a new file
            if ranks.any_rank(self._saver.is_busy):
                what = f"the state after {num_updates} updates is not kept"
                self._tell("busy", f"{what}: the disk is still writing the one before")
                return
        self._report()
        with generators_kept():
            if before is not None:  # the generators as they were when the update began
                set_generators(before.micro[0].moment, self._training.device_type)
            state = self._training.collect()
        if ranks.rank() == 0 or self._training.is_sharded:
            self._saver.save(num_updates, state, About(run_id=self.store.folder.run_id))
        if first:
            self._saver.wait()
            self._report()
            self.keeps_states = not ranks.any_rank(self._is_beyond_budget(num_updates))

    def begin_again(self) -> None:
        """Start the next update with a kept state and a new batch file, as after a restart, because the training went back."""
        self._started = False

    def put(self, update: Update) -> None:
        """Queue an update for writing: its batches, and its record if its loss is known."""
        num_waiting = len(self._queue)
        is_slow = num_waiting > _MAX_WAITING or num_waiting * self._bytes_each > _MAX_WAITING_BYTES
        if is_slow:
            self._tell("slow", "batches are not kept for a while: the disk is too slow")
        keeps = self._started and not is_slow
        self._queue.append(partial(self._write, _record_of(update), update if keeps else None))
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_regularly, name="sonde-flight", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Write everything in the queue."""
        self._write_all()
        self._saver.wait()
        self._report()

    def close(self) -> None:
        """Write everything and end the thread."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_regularly(self) -> None:
        while not self._ends.wait(_WRITE_SECONDS):
            self._write_all()
            self.writer_seconds = time.thread_time()

    def _write_all(self) -> None:
        with self._writing:
            while self._queue:
                try:
                    self._queue.popleft()()
                except Exception as error:  # noqa: BLE001  a thread has no caller to raise to, and training continues
                    self._tell("failed", f"the flight recorder cannot write: {error!r}")

    def _write(self, record: Mapping[str, Any], update: Update | None) -> None:
        """Write an update: its batches first, if they are kept, and then its record."""
        if update is not None and self._file is not None:
            self._add(self._file, update)
        if record["loss"] is None:
            return
        if self._run.rank == 0:
            self._run.records(STEPS).append(record)
        every = self._settings.log_every
        if every and record["step"] % every == 0:
            told = {f"train.{name}": record[name] for name in ("loss", "lr", "grad_norm") if record[name] is not None}
            self._run.logger.log(step=record["step"], data=told)

    def _add(self, file: BatchFile, update: Update) -> None:
        """Append the batches of an update to the file, if possible. Never raises, because the step record must still be written."""
        try:
            pieces = encode_update(update)
            if not all(one.is_whole() for one in update.micro):
                self.copies_batches = True
                raise ValueError("its tensors were written over after the step")
            self._bytes_each = sum(tensor.nbytes for one in update.micro for tensor in one.tensors)
            file.append(pieces)
        except OSError as error:
            self._tell_disk(error)
            self._thin()
        except Exception as error:  # noqa: BLE001  a user-defined batch may fail in any way
            self._tell("batch", f"the batch of step {update.step} cannot be kept: {error}")

    def _open(self, num_updates: int) -> None:
        """Start a new batch file, and remove files that no kept state needs."""
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            self._prune()
            self._file = BatchFile(batch_path(self._folder, num_updates, self._run.rank))
        except OSError as error:
            self._tell_disk(error)

    def _tell_disk(self, error: OSError) -> None:
        self._tell("batches", f"batches cannot be kept: {error.strerror or error}; training goes on")

    def _prune(self) -> None:
        """Remove batch files from before the oldest kept state, and whatever exceeds the budget."""
        events = self._event_steps
        oldest = next((one for one in self.store.folder.steps() if one not in events), 0)
        for (first, path), (end, _) in pairwise(batch_files(self._folder, self._run.rank)):
            if end <= oldest and not any(first <= one < end for one in events):
                path.unlink(missing_ok=True)
        # States and the batches of all ranks, which remove theirs at any time.
        if sum(storage_at(self._folder).sizes().values()) > self._settings.max_bytes:
            self._thin()

    def _thin(self) -> None:
        """Remove the oldest kept state and the batches that only it needs. At least one state remains."""
        states = self.store.folder.steps()
        files = batch_files(self._folder, self._run.rank)
        if len(states) > 1 and self._run.rank == 0:
            try:
                self.store.folder.remove(states[0])
            except (OSError, SondeError) as error:
                self._tell("thin", f"{self.store.folder.directory} cannot be thinned: {error}")
        if len(files) > 1:
            files[0][1].unlink(missing_ok=True)

    def _is_beyond_budget(self, num_updates: int) -> bool:
        """Return whether one state exceeds the budget. Rank 0 logs what is kept."""
        if ranks.rank() != 0 or num_updates not in self.store.folder.steps():
            return False
        size, settings = self.store.folder.num_bytes(num_updates), self._settings
        if size > settings.max_bytes:
            self.store.folder.remove(num_updates)
            self._tell("budget", f"no states are kept: one takes {size / 1e6:.1f} MB, and max_bytes allows {settings.max_bytes / 1e6:.1f}")  # fmt: skip
            return True
        _logger.info(
            "%s keeps a state every %d updates, the last %d of them (%.1f MB at first), and their batches: at most %.1f GB",
            *(self._folder, settings.state_every, settings.keep_states, size / 1e6, settings.max_bytes / 1e9),
        )
        return False

    def _report(self) -> None:
        for outcome in self._saver.finished():
            if outcome.error is not None:
                self._tell("state", f"the state after {outcome.step} updates was not kept: {outcome.error}")
                self._thin()

    def _tell(self, what: str, message: str) -> None:
        """Log a message once, and record it in the run."""
        if what not in self._told:
            self._told.add(what)
            _logger.warning(message)
            self._run.event("flight_thinned", what=what, message=message)


def _record_of(update: Update) -> dict[str, Any]:
    """Return the record of an update."""
    record = {
        "type": STEP,
        "step": update.step,
        "epoch": 1,
        "loss": update.loss,
        "weight": float(update.num_tokens),
        "grad_norm": update.grad_norm,
        "lr": update.lr,
    }
    return record if update.skipped is None else {**record, "skipped": update.skipped}
