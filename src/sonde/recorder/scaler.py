"""Whether a gradient scaler has ended an update.

A scaler that finds an overflow does not call the optimizer, so nothing else tells that an update is
over: a loop that accumulates gradients looks the same. `GradScaler.update`, which every loop calls
once per update, does. It is wrapped in the class, so that scalers can still be copied and pickled;
it works as before.
"""

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch

from sonde.recorder.reach import reached
from sonde.recorder.update import Update

_watches: "weakref.WeakSet[ScalerWatch]" = weakref.WeakSet()
_wrapped: list[bool] = []
"""Not empty once the method is wrapped."""


_MANY_SKIPS: Final = 25
"""So many updates in a row that a gradient scaler skips are an event. From its usual first scale,
2**16, a scaler is down at 1 after 16.
"""


def find_scalers(
    parts: Iterable[Any], step_function: Callable[..., Any] | None
) -> list[torch.amp.GradScaler]:
    """Return the gradient scalers among some parts, and those that a step function uses."""
    values = [*parts]
    if step_function is not None:
        values += reached(step_function)
    found = {id(part): part for part in values if isinstance(part, torch.amp.GradScaler)}
    return list(found.values())


class ScalerWatch:
    """Watches the gradient scalers of a training."""

    def __init__(self) -> None:
        self.has_updated = False
        """Whether a scaler was updated since this was last set to False."""
        self.num_skips = 0
        """How many updates in a row ended without a call of the optimizer."""
        self._scalers: Sequence[torch.amp.GradScaler] = ()

    def watch(self, scalers: Sequence[torch.amp.GradScaler]) -> None:
        """Begin to watch, if there are any scalers."""
        self._scalers = scalers
        if scalers:
            _watches.add(self)
            _wrap()

    def note_skip(self, update: Update, tell: Callable[[Update, int], None]) -> None:
        """Count an update that was skipped; when too many were in a row, `tell` it once."""
        self.num_skips += 1
        if self.num_skips == _MANY_SKIPS:
            tell(update, self.num_skips)

    def note(self, scaler: torch.amp.GradScaler) -> None:
        """Take notice that a scaler was updated."""
        if any(own is scaler for own in self._scalers):
            self.has_updated = True


def _wrap() -> None:
    """Wrap the method of all scalers, once."""
    if _wrapped:
        return
    _wrapped.append(True)
    update = torch.amp.GradScaler.update

    @functools.wraps(update)
    def overheard(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        for watch in _watches:
            watch.note(self)
        update(self, *args, **kwargs)

    torch.amp.GradScaler.update = overheard  # type: ignore[method-assign]
