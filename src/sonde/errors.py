"""All errors that sonde raises.

    SondeError                      what was wrong, why, what to do next
    ├── SettingError (ValueError)   an argument or setting cannot be used
    ├── MissingDependency (ImportError)   an extra is not installed
    ├── RunError                    a run directory cannot be used
    │   ├── RunNotFound             there is no run here
    │   └── RunLocked               another live run owns the directory
    ├── TrainingStopped             a recorder stopped the run at an event, as configured
    └── DamagedFile                 a file is truncated, altered or not what it claims to be

Each has a message, an optional cause and an optional hint; the command line prints them as
`error:`, `cause:` and `hint:`. Errors are for bad *arguments* and broken *files*. Only
`TrainingStopped`, which a user must opt into, is raised because of bad *values* inside a training
step.
"""

import difflib
import importlib
from collections.abc import Iterable, Sequence
from typing import Any


class SondeError(Exception):
    """Base class of all errors: catch this to catch everything sonde raises on purpose."""

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.cause:
            parts.append(f"cause: {self.cause}")
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)


class SettingError(SondeError, ValueError):
    """An argument or setting cannot be used; the message names it, its value and what would be
    accepted.
    """


class MissingDependency(SondeError, ImportError):  # noqa: N818  named after what happened
    """A required package is not installed; the hint names the extra that provides it."""

    def __init__(self, package: str, *, needed_for: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed",
            hint=f"pip install 'torchsonde[{extra}]'",
        )


def import_extra(module: str, *, needed_for: str, extra: str) -> Any:
    """Import a module that an extra provides; raise MissingDependency if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependency(
            module.rpartition(".")[2], needed_for=needed_for, extra=extra
        ) from None


class RunError(SondeError):
    """A run directory cannot be used."""


class RunNotFound(RunError):  # noqa: N818  named after what happened
    """There is no run at the given path."""


class RunLocked(RunError):  # noqa: N818  named after what happened
    """Another live run owns the directory."""


class TrainingStopped(SondeError):  # noqa: N818  named after what happened
    """The loss jumped, and the recorder stopped the run before anything changed
    (`on_event="stop"`).
    """


class DamagedFile(SondeError):  # noqa: N818  named after what happened
    """A file is truncated, altered or not what it claims to be; the message names it."""


def did_you_mean(name: str, allowed: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return a hint for an unknown name: the closest allowed one, or `otherwise` if nothing is
    close.
    """
    matches = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {matches[0]!r}?" if matches else otherwise


def check_at_least(least: int, **settings: object) -> None:
    """Raise SettingError unless every setting is an integer of `least` or more."""
    for name, value in settings.items():
        if type(value) is not int or value < least:
            raise SettingError(f"{name} is {value!r}", hint=f"use a whole number, {least} or more")


def check_choice(choices: Sequence[str], **settings: object) -> None:
    """Raise SettingError unless every setting is one of the choices."""
    for name, value in settings.items():
        if value not in choices:
            raise SettingError(
                f"{name} is {value!r}", hint=f"use one of {', '.join(map(repr, choices))}"
            )
