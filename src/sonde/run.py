"""`Run`: the entry point for your own training loop.

    with sonde.Run("runs/x", config=args, seeds={"torch": 1}) as run:
        for step, batch in enumerate(batches):
            …
            run.logger.log(step=step, data={"loss": loss})

A run owns its directory: it writes the manifest, refuses a directory that another live run owns,
provides one record file per kind for this rank, and records how it ended. Started again in the same
directory, it resumes: same run id, one more start. Only rank 0 writes manifest and lock; every rank
writes its own records. Opening costs about 30 ms, most of it for git.
"""

import atexit
import dataclasses
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sonde.checkpoint.folder import CheckpointFolder
from sonde.errors import RunError, RunNotFound, SettingError
from sonde.log.backend import Verbosity
from sonde.log.backends.json_stream import JSONStreamBackend
from sonde.log.logger import Logger
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.files import check_folder, explained, sweep_temporaries
from sonde.records.host import describe_start, rank_of_process, world_size_of_process
from sonde.records.journal import event_record
from sonde.records.layout import EVENTS, LOG, SPIKES, RunLayout, move_attempt
from sonde.records.lock import RunLock
from sonde.records.manifest import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    Manifest,
    absolute_place,
    checkpoint_place,
    new_run_id,
    read_manifest,
    write_manifest,
)
from sonde.records.replay_order import place_to_record, replayed_run
from sonde.records.secrets import mask_config
from sonde.records.values import decode, encode
from sonde.spikes.decoding import describe_datasets
from sonde.spikes.detectors import Event
from sonde.spikes.ledger import Ledger
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings
from sonde.spikes.sample_judge import CountCharacters
from sonde.spikes.spike_log import with_recorded_skips
from sonde.spikes.step_entry import StepEntry

_logger = logging.getLogger("sonde")


if TYPE_CHECKING:
    from sonde.checkpoint.store import CheckpointStore
    from sonde.probe.debugger import PrecisionDebugger

_refused: list[str] = []
"""Reasons why no run may be opened now; empty if one may."""


@contextmanager
def runs_refused(reason: str) -> Iterator[None]:
    """Refuse to open runs for writing inside the block, because the executed code is not meant to
    train.
    """
    _refused.append(reason)
    try:
        yield
    finally:
        _refused.pop()


class Run:
    """One training run and its directory. Use it in a `with` block, or call `close`.

    ```python
    from sonde import Run

    with Run("runs/mine", config={"lr": 1e-3}) as run:
        for step in range(1, 101):
            run.logger.log(step=step, data={"loss": 4 / step})
    ```
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        config: object = None,
        seeds: Mapping[str, int] | None = None,
        data: Mapping[str, str] | None = None,
        recipe: str | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        break_lock: bool = False,
        shared: bool = False,
    ) -> None:
        """Open a run, creating or resuming it.

        Args:
            directory: The directory of the run.
            config: The hyperparameters: any value.
            seeds: The seeds of the training, by name.
            data: The fingerprints of the data sets, by name.
            recipe: The `module:function` that rebuilds the training for a replay (docs/replay.md).
            checkpoints: A folder or URL outside the run; give it at every start.
            rank: The rank of this process; torchrun's environment says it otherwise.
            world_size: The number of ranks, likewise.
            break_lock: Also open a directory that another machine has locked.
            shared: Let others read the directory; otherwise only its owner may.
        """
        if _refused:
            raise RunError(
                f"the run {directory} is not opened now",
                cause=_refused[-1],
                hint=(
                    'put what trains under `if __name__ == "__main__":`, or replay by running the'
                    " script: -- python train.py"
                ),
            )
        self.rank = rank_of_process() if rank is None else rank
        self.world_size = world_size_of_process() if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise SettingError(
                f"rank {self.rank} is not one of {self.world_size} ranks (0 to"
                f" {self.world_size - 1})"
            )
        self.asked_for = Path(directory)
        """The directory that was given. In a check, nothing is written there."""
        self.directory = place_to_record(self.asked_for)
        # the caller may change its working directory
        self.layout = RunLayout(self.directory.absolute())
        self._written = self.layout
        self.checkpoint_place: Path | str = self.layout.checkpoints
        """Where the checkpoints are: a folder, inside or outside the run, or a URL."""
        self._resources = ExitStack()
        """What is closed at the end, the newest first."""
        self._files: dict[str, RecordFile] = {}
        self._spikes: SpikeRecorder | None = None
        self._checkpoints: CheckpointStore | None = None
        self._manifest: Manifest | None = None
        self._closed = False
        self._pid = os.getpid()
        self.is_replay = False
        """True if a replay runs the script. Nothing is then written into the run."""
        self.closing: list[Callable[[], None]] = []
        """Called when the run is closed, before anything else."""
        replayed = replayed_run()
        if replayed is not None:
            self._cast_shadow(replayed)
            return
        with explained(
            f"cannot create the run directory {directory}",
            hint="check the path and your permissions",
        ):
            disk.make_directories(self.layout.root, mode=0o777 if shared else 0o700)
        outside = None if checkpoints is None else absolute_place(checkpoints)
        self.checkpoint_place = checkpoint_place(self.layout.root, outside, to_change=True)
        for folder in (self.layout.records, self.layout.forensics, self.layout.probe):
            check_folder(folder)
        try:
            details: dict[str, Any] = {"pid": os.getpid(), "world_size": self.world_size}
            if self.rank == 0:
                lock = RunLock(self.layout.lock, force=break_lock, reopen=True)
                self._resources.callback(lock.release)
                sweep_temporaries(self.layout.root)
                named = {"seeds": seeds and dict(seeds), "data": data and dict(data)}
                details |= self._start(
                    {
                        "settings": _without_secrets(config),
                        "recipe": recipe,
                        "checkpoints": outside,
                        **named,
                    }
                )
                if lock.previous is not None:
                    self.event("takeover", previous=dataclasses.asdict(lock.previous))
            self.event("start", **details)
        except BaseException:
            self._resources.close()
            raise
        atexit.register(self._close_at_exit)

    @property
    def manifest(self) -> Manifest:
        """The contents of run.json (read from disk on ranks other than 0)."""
        return self._manifest or read_manifest(self.layout.root)

    @property
    def resumed(self) -> bool:
        """True if this run has been started before."""
        return self.manifest.num_starts > 1

    def records(self, kind: str) -> RecordFile:
        """Return this rank's append-only file for records of one kind; the same object each
        time.
        """
        file = self._files.get(kind)
        if file is None:
            file = RecordFile(self._written.record_file(kind, self.rank))
            self._files[kind] = self._resources.enter_context(file)
        return file

    @cached_property
    def logger(self) -> Logger:
        """The structured logger that writes to this run's stream."""
        stream = JSONStreamBackend(Verbosity.VERBOSE, self.records(LOG))
        return self._resources.enter_context(Logger([stream], rank=self.rank))

    def spikes(
        self,
        *,
        settings: SpikeSettings | None = None,
        datasets: Mapping[str, Any] | None = None,
        agree: Callable[[bool], bool] | None = None,
        investigate: Callable[[Event, StepEntry], None] | None = None,
        characters: CountCharacters | None = None,
    ) -> SpikeRecorder:
        """Return this rank's recorder of loss spikes: `run.spikes().observe(step, loss, …)`; the
        same object each time.

        The arguments take effect at the first call and may not be given later.
        """
        given: dict[str, Any] = {
            "settings": settings,
            "datasets": datasets,
            "agree": agree,
            "investigate": investigate,
            "characters": characters,
        }
        if self._spikes is None:
            checkpoints = CheckpointFolder(self.checkpoint_place)
            ledger = Ledger(
                self.layout,
                self.rank,
                world_size=self.world_size,
                data=describe_datasets(datasets or {}),
                checkpoints=checkpoints.steps,
            )
            given |= {"rank": self.rank, "world_size": self.world_size, "ledger": ledger}
            self._spikes = SpikeRecorder(self.records(SPIKES), **given)
            self._resources.callback(self._spikes.close)
        elif any(value is not None for value in given.values()):
            raise SettingError(
                "the spike recorder of this run exists already",
                cause="what it is made with counts at the first call of `run.spikes`",
                hint=("give settings and datasets there; a Recorder makes the first call itself"),
            )
        return self._spikes

    def checkpoints(self) -> "CheckpointStore":
        """Return the store of this run's checkpoints: `run.checkpoints().save(step, state)`. Loads
        torch on first use.
        """
        if self._checkpoints is None:
            from sonde.checkpoint.store import CheckpointStore

            self._checkpoints = CheckpointStore(self.checkpoint_place, run_id=self.manifest.run_id)
        return self._checkpoints

    def probe(self, **settings: Any) -> "PrecisionDebugger":
        """Return a probe that dumps tensors into this run (docs/probe.md):
        `run.probe(task="tensor").save(…)`.
        """
        from sonde.probe.debugger import PrecisionDebugger

        return PrecisionDebugger(dump_path=self._written.probe, **settings)

    def begin_attempt(self) -> Path | None:
        """Move the records of an earlier attempt to `attempts/N`, because the training starts from
        the beginning.

        Return the new place, or None. Every rank moves its own files. `Recorder` calls this
        at step 1.
        """
        if (
            self.is_replay
            or (moved := move_attempt(self.layout, self.rank, self.manifest.num_starts - 1)) is None
        ):
            return None
        for kind in moved[1]:
            if kind in self._files:
                self._files[kind].reopen()
        _logger.info("sonde: the earlier attempt is now in %s", moved[0])
        self.event("attempt", earlier=str(moved[0]))
        return moved[0]

    def event(self, event: str, **details: object) -> None:
        """Record an event in the life of the run itself. Never raises."""
        self.records(EVENTS).append(event_record(event, self.rank, details))

    def close(self, *, status: str = FINISHED, reason: str | None = None) -> None:
        """End the run: record how it ended, close the files and release the lock. A second call
        does nothing.

        Does nothing in a forked child (such as a data worker leaving the `with` block): the run
        belongs to the parent. A disk error at this point is logged, not raised.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        for close in self.closing:
            close()
        self.event("end", status=status, reason=reason)
        if self._manifest is not None and not self.is_replay:
            self._manifest = dataclasses.replace(
                self._manifest, status=status, ended=time.time(), reason=reason
            )
            try:
                self._manifest = with_recorded_skips(self.layout.root, self._manifest)
                write_manifest(self.layout.root, self._manifest)
            except OSError as error:
                _logger.warning(
                    "cannot note the end of the run in %s: %s", self.layout.manifest, error
                )
        self._resources.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.close()
            return
        # Not str(error): an exception's own __str__ may raise.
        reason = "".join(traceback.format_exception_only(error)).strip()[:500]
        self.close(status=INTERRUPTED if _is_from_outside(error) else FAILED, reason=reason)

    def _close_at_exit(self) -> None:
        """Close a run that nobody closed, when Python ends, by an exception or in peace."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and not hasattr(sys, "ps1"):
            self.__exit__(type(error), error, None)
        else:
            self.close()

    def _cast_shadow(self, directory: Path) -> None:
        """Redirect writes to a temporary directory, because a replay is running the script on an
        existing run.
        """
        self.is_replay = True
        shadow = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="sonde-shadow-"))
        self.directory = directory
        self.layout = RunLayout(directory.absolute())
        self._written = RunLayout(Path(shadow))
        self.checkpoint_place = self._written.checkpoints
        self._manifest = read_manifest(self.layout.root)

    def _start(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Write the manifest for one more start and return what its event tells. Values not given
        stay unchanged.
        """
        try:
            before = with_recorded_skips(self.layout.root, read_manifest(self.layout.root))
        except RunNotFound:
            before = Manifest(run_id=new_run_id(), created=time.time(), num_starts=0)
        changed = {
            name: value for name, value in given.items() if value is not None
        } | describe_start()
        began: dict[str, Any] = {
            "status": RUNNING,
            "ended": None,
            "reason": None,
            "num_starts": before.num_starts + 1,
        }
        manifest = self._manifest = dataclasses.replace(
            before, world_size=self.world_size, **began, **changed
        )
        with explained(
            f"cannot write {self.layout.manifest}",
            hint="check that the directory is yours and has space",
        ):
            write_manifest(self.layout.root, manifest)
        values = {"run_id": manifest.run_id, "start": manifest.num_starts}
        values |= {name: getattr(manifest, name) for name in ("command", "versions", "git")}
        if before.settings is not None and encode(manifest.settings) != encode(before.settings):
            values["settings_before"] = before.settings  # the manifest has the new settings
        return values


def _without_secrets(config: object) -> object:
    """Return the config as it may be written."""
    plain = decode(encode(config))
    masked = mask_config(plain)
    return config if masked == plain else masked


def _is_from_outside(error: BaseException) -> bool:
    """Return whether the process was interrupted (Ctrl-C or exit codes 129, 130, 143), which is no
    failure.
    """
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, SystemExit) and error.code in (129, 130, 143)
    )
