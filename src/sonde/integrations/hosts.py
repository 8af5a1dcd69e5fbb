"""Code shared by all hosts: version checks, skipped samples, and checkpoints that the host writes
itself.
"""

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.skip_list import SkipList
from sonde.errors import MissingDependency, SettingError
from sonde.forensics.rollback import HOST_CHECKPOINT, newest_of_host
from sonde.recorder.options import OnEvent, RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.recorder.samples import skipped
from sonde.records.files import read_small, write_file
from sonde.records.layout import RunLayout
from sonde.records.replay_order import CHECK, order_of_process
from sonde.records.values import decode, encode
from sonde.run import Run

_WATCH: Final = "sonde.json"
_MAX_BYTES: Final = 64 << 20

_logger = logging.getLogger("sonde")


def require(package: str, oldest: str) -> None:
    """Raise an error if a package is missing or older than `oldest`."""
    try:
        found = version(package)
    except PackageNotFoundError:
        raise MissingDependency(
            package, needed_for=f"sonde.integrations for {package}", extra=package
        ) from None
    if _numbers(found) < _numbers(oldest):
        sentence = f"sonde works with {package} {oldest} and newer, and {found} is installed"
        raise SettingError(sentence, hint=f"pip install -U '{package}>={oldest}'")


def skip_list_of(run: Run) -> SkipList:
    """Return the samples that a run skips."""
    return SkipList() if run.is_replay else skipped(run.layout)


def note_checkpoint(run: Run, host: str, step: int, path: str | os.PathLike[str]) -> None:
    """Record a checkpoint written by the host, so that `sonde rollback` can go back to it."""
    run.event(HOST_CHECKPOINT, host=host, step=step, path=str(Path(path).absolute()))


def note_state(recorder: Recorder | None, path: str | os.PathLike[str]) -> None:
    """Record the state that the host has saved, so that a resume from it can be checked."""
    if recorder is not None:
        recorder.checkpoint(path)


def checkpoint_to_replay() -> str:
    """Return the checkpoint of the host that a replay begins at: its newest before the step. Empty
    if this is no replay of a step, or if a kept state is what it begins at.
    """
    order = order_of_process()
    if order is None or order.step is None or order.verb == CHECK:
        return ""
    run = Path(order.run)
    if any(step < order.step for step in CheckpointFolder(RunLayout(run).kept_states).steps()):
        return ""
    found = newest_of_host(run, order.step)
    return "" if found is None else found.path


class Hosted(ABC):
    """What the callbacks of all hosts have: a run while the host trains, its recorder, and the
    functions they wrap.
    """

    def __init__(
        self,
        package: str,
        oldest: str,
        directory: str | Path,
        on_event: OnEvent,
        options: RecorderOptions | None,
    ) -> None:
        require(package, oldest)
        if on_event == "heal":
            hint = 'on_event="stop"; then `sonde rollback RUN --step N --apply`, and start again'
            raise SettingError(
                'on_event="heal" works only in a loop of your own, which can go back', hint=hint
            )
        self._directory = Path(directory)
        self._on_event = on_event
        self._options = options
        self._is_off = os.environ.get("SONDE", "").lower() == "off"
        self.run: Run | None = None
        """The run, while the host is training; otherwise None."""
        self._recorder: Recorder | None = None
        self._wrapped: list[tuple[Any, str]] = []

    @abstractmethod
    def _begin(self, model: Any) -> Recorder:
        """Start the recorder, at the first batch of a training."""

    def _wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a method of one object, until the end of training, and return it."""
        original: Callable[..., Any] = getattr(owner, name)
        setattr(owner, name, function)
        self._wrapped.append((owner, name))
        return original

    def _end(self) -> None:
        """Restore everything that was wrapped and close the run."""
        for owner, name in self._wrapped:
            owner.__dict__.pop(name, None)
        self._wrapped.clear()
        if self.run is not None:
            self.run.close()
        self.run = self._recorder = None


def resume_recording(recorder: Recorder, num_updates: int) -> None:
    """Continue after `num_updates` updates, and discard kept states from later steps, which belong
    to the abandoned part of the run.
    """
    recorder.num_updates = num_updates
    if recorder.run.rank == 0:
        recorder.run.event("resume", step=num_updates)
        folder = recorder.training.store.folder
        for step in folder.steps():
            if step > num_updates:
                folder.remove(step)


def save_watch(run: Run, folder: Path) -> None:
    """Save the state of the spike recorder in the host's checkpoint, so that it need not warm up
    again after a resume.
    """
    if folder.is_dir():
        write_file(folder / _WATCH, encode(run.spikes().state_dict(), max_bytes=_MAX_BYTES))


def load_watch(run: Run, folder: Path) -> None:
    """Restore the state saved by `save_watch`. If there is none, the spike recorder starts
    fresh.
    """
    try:
        state: Any = decode(read_small(folder / _WATCH, max_bytes=_MAX_BYTES))
        run.spikes().load_state_dict(state)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        _logger.warning(
            "what the watch knew cannot be read from %s: %s; it learns anew", folder, error
        )


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)[:3]]
