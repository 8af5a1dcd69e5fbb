"""The one boundary between sonde and the training it watches.

An error of ours inside a user's step, or of a callable of theirs that *we* call (`decode`,
`sample_ids`, a `state_dict`), never reaches their loop. It is told once, with what is no longer
recorded, and training goes on. Four things pass: Ctrl-C, every exception of the user's own code,
what they asked for (`on_event="stop"`, the end of healing), and the end of a process that was
started for an answer. What a signal handler of theirs raises is of their own code, also if the
signal comes in the middle of ours.
"""

import contextlib
import functools
import logging
import signal
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

from sonde.errors import TrainingStopped
from sonde.records.journal import RECORDER_NOTICE
from sonde.run import Run

_T = TypeVar("_T")


class ProcessEnds(SystemExit):
    """Ends a process that was started for a replay or a check, once its answer is written."""


PASSES: Final = (KeyboardInterrupt, TrainingStopped, ProcessEnds)
"""What the boundary lets through."""

_logger = logging.getLogger("sonde")


class Guard:
    """Tells what went wrong in the recorder, each thing once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._told: set[str] = set()

    def tell(self, what: str, message: str, *, since: int = 0) -> None:
        """Log a message and record it in the run, unless `what` was told before. `since` is the
        step from which on it holds.
        """
        self._tell(logging.WARNING, what, message, since)

    def note(self, what: str, message: str) -> None:
        """Log and record what is no problem, unless `what` was told before."""
        self._tell(logging.INFO, what, message, 0)

    def _tell(self, level: int, what: str, message: str, since: int) -> None:
        if what in self._told:
            return
        self._told.add(what)
        with contextlib.suppress(Exception):  # a handler of the user's own log may fail
            _logger.log(level, "%s", message)
        self._run.event(RECORDER_NOTICE, what=what, message=message, since=since)

    def has_told(self, what: str) -> bool:
        """Return whether something was told before."""
        return what in self._told

    def catch(self, lost: str, error: BaseException) -> None:
        """Tell of an error that the training must not notice. `lost` says what is not recorded."""
        if is_from_a_signal(error):
            self.tell(f"{lost}, signal", f"sonde: {lost}: a signal came, and its handler raised")
            raise error
        if lost in self._told:
            return
        # Not str(error): an exception's own __str__ may raise.
        reason = "".join(traceback.format_exception_only(error)).strip()[:500]
        self.tell(lost, f"sonde: {lost}; training goes on ({reason})")
        _logger.debug("where it happened:", exc_info=error)


def is_from_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler of the script raised an error. Python runs handlers between
    any two operations.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {_code_of(handler) for handler in handlers if callable(handler)} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(function: Any) -> Any:
    """Return the code that runs when something is called; None if it is not Python's."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):  # an object with a method for it
        function = type(function).__call__
    return getattr(function, "__code__", None)


def guarded(lost: str) -> Callable[[Callable[..., _T]], Callable[..., _T | None]]:
    """Make a method of an object with a `guard` one that never raises into a training. `lost` says
    what is not recorded if it fails.

    Arguments are passed by position only: the methods are called at every step, and a dict of
    keywords would take time.
    """

    def wrap(method: Callable[..., _T]) -> Callable[..., _T | None]:
        @functools.wraps(method)
        def call(self: Any, /, *args: Any) -> _T | None:
            try:
                return method(self, *args)
            except PASSES:
                raise
            except BaseException as error:  # noqa: BLE001  SystemExit of a callable included
                self.guard.catch(lost, error)
                return None

        return call

    return wrap
