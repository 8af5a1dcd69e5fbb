"""Whether a gradient scaler has ended an update.

A scaler that finds an overflow does not call the optimizer, so nothing else tells that an update is
over: a loop that accumulates gradients looks the same. `GradScaler.update`, which every loop calls
once per update, does. It is wrapped in the class, so that scalers can still be copied and pickled;
it works as before.
"""

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch

from sonde.recorder.reach import reached
from sonde.spikes.quiet_rules import NO_OPTIMIZER_STEP, SCALER_SKIPS, QuietFinding

_watches: "weakref.WeakSet[ScalerWatch]" = weakref.WeakSet()
_wrapped: list[bool] = []
"""Not empty once the method is wrapped."""


_MANY_SKIPS: Final = 25
"""So many updates in a row that a gradient scaler skips are an event. From its usual first scale,
2**16, a scaler is down at 1 after 16.
"""
_NUM_RECENT: Final = 30
"""So many of the last updates are looked at for skips that are not in a row."""
_MOST: Final = 20
"""So many skips among them are an event too, if enough updates were made in between."""
_LEAST_MADE: Final = 3
"""So many are enough: then the scale does not come down, it goes up again and again."""


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
        self._num_in_row = 0
        """How many updates in a row ended without a call of the optimizer."""
        self._recent: deque[bool] = deque(maxlen=_NUM_RECENT)
        """Whether each of the last updates was skipped."""
        self._is_told = False
        self._scalers: Sequence[torch.amp.GradScaler] = ()

    def watch(self, scalers: Sequence[torch.amp.GradScaler]) -> None:
        """Begin to watch, if there are any scalers."""
        self._scalers = scalers
        if scalers:
            _watches.add(self)
            _wrap()

    def note_made(self) -> None:
        """Count an update that was made."""
        self._num_in_row = 0
        if self._scalers:
            self._recent.append(False)

    def note_skip(self, step: int) -> QuietFinding | None:
        """Count an update that ended without a call of the optimizer. Returns what to tell when
        there were too many, once.
        """
        self._num_in_row += 1
        self._recent.append(True)
        if self._is_told:
            return None
        num_skipped = sum(self._recent)
        num_made = len(self._recent) - num_skipped
        in_a_row = f"{self._num_in_row} updates in a row"
        if self._num_in_row >= _MANY_SKIPS:
            self._is_told = True
            return _many_skips(step, in_a_row) if self._scalers else _never_called(step, in_a_row)
        if num_skipped >= _MOST and num_made >= _LEAST_MADE:
            self._is_told = True
            return _many_skips(step, f"{num_skipped} of the last {len(self._recent)} updates")
        return None

    def note(self, scaler: torch.amp.GradScaler) -> None:
        """Take notice that a scaler was updated."""
        if any(own is scaler for own in self._scalers):
            self.has_updated = True


def _many_skips(step: int, how_many: str) -> QuietFinding:
    return QuietFinding(
        kind=SCALER_SKIPS,
        step=step,
        sentence=f"the gradient scaler has skipped {how_many}, so next to nothing is learnt",
        look_at="what overflows at any scale: a loss or a gradient that is not finite; how fast the"
        " scale grows again",
    )


def _never_called(step: int, how_many: str) -> QuietFinding:
    return QuietFinding(
        kind=NO_OPTIMIZER_STEP,
        step=step,
        sentence=f"{how_many} have ended without a call of the optimizer, so nothing is learnt",
        look_at="the condition around optimizer.step(), or what skips it",
    )


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
