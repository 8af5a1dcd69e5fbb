"""Every error a user of sonde can meet.

    SondeError                      what was wrong, why, what to do next
    ├── SettingError (ValueError)   an argument or setting cannot be used
    ├── MissingDependency (ImportError)   an extra is not installed
    ├── RunError                    a run directory cannot be used
    │   ├── RunNotFound             there is no run here
    │   └── RunLocked               another live run owns the directory
    ├── TrainingStopped             a flight recorder was told to stop the run at an event, and did
    └── DamagedFile                 a file is truncated, altered or not what it claims to be

Each carries a message, an optional cause and an optional hint; the command line prints the three as `error:`, `cause:`
and `hint:`. Errors are for bad *arguments* and broken *files*: nothing but
`TrainingStopped`, which a user must ask for, is raised for bad *values* inside a training step.
"""

import difflib
import importlib
from collections.abc import Iterable, Sequence
from typing import Any


class SondeError(Exception):
    """Base of all errors: catch this to catch everything sonde raises on purpose."""

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
    """An argument or setting cannot be used; the message names it, its value and what would be accepted."""


class MissingDependency(SondeError, ImportError):  # noqa: N818  (what is missing reads better than MissingDependencyError)
    """A package that this part needs is not installed; the hint says which extra brings it."""

    def __init__(self, package: str, *, needed_for: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs {package}, which is not installed",
            hint=f"pip install 'torchsonde[{extra}]'",
        )


def import_extra(module: str, *, needed_for: str, extra: str) -> Any:
    """A module of a package that an extra brings; MissingDependency when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependency(module.rpartition(".")[2], needed_for=needed_for, extra=extra) from None


class RunError(SondeError):
    """A run directory cannot be used."""


class RunNotFound(RunError):  # noqa: N818  named after what happened
    """There is no run at the given path."""


class RunLocked(RunError):  # noqa: N818  named after what happened
    """Another live run owns the directory."""


class TrainingStopped(SondeError):  # noqa: N818  named after what happened
    """The loss jumped, and the flight recorder was told to stop the run then (`on_event="stop"`); nothing has moved."""


class DamagedFile(SondeError):  # noqa: N818  named after what happened
    """A file is truncated, altered or not what it claims to be; the message names it."""


def did_you_mean(name: str, allowed: Iterable[str], otherwise: str | None = None) -> str | None:
    """The hint for an unknown name: the allowed one closest to it, or `otherwise` when nothing is close."""
    matches = difflib.get_close_matches(name, list(allowed), n=1)
    return f"did you mean {matches[0]!r}?" if matches else otherwise


def check_at_least(least: int, **settings: object) -> None:
    """Raise SettingError unless every setting is a whole number, `least` or more."""
    for name, value in settings.items():
        if type(value) is not int or value < least:
            raise SettingError(f"{name} is {value!r}", hint=f"use a whole number, {least} or more")


def check_choice(choices: Sequence[str], **settings: object) -> None:
    """Raise SettingError unless every setting is one of the choices."""
    for name, value in settings.items():
        if value not in choices:
            raise SettingError(f"{name} is {value!r}", hint=f"use one of {', '.join(map(repr, choices))}")
