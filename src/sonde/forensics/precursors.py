"""What preceded an event, in sentences: vitals that had grown, each only if it is true. Pure.

    what_preceded(vitals, step)

`vitals` are those that the recorder measured every few dozen steps (recorder/vitals.py), by name.
The names are here, because the recorder knows this package and not the other way round.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

UPDATE_NORM: Final = "update_norm"
"""The size of the update."""
UPDATE_RATIO: Final = "update_ratio"
"""The size of the update relative to that of the weights."""
OUTPUT_NORM: Final = "output_norm"
"""The size of the output layer's weights."""
CLIPPED_SHARE: Final = "clipped_share"
"""The share of the last steps whose gradients were clipped."""
GROUP_NORM: Final = "grad_norm.group"
"""The gradient norm of a parameter group, whose number follows."""

_WINDOW: Final = 1000
"""How many steps before an event count."""
_MIN_LOOKS: Final = 4
_DOUBLED: Final = 2.0
_LARGE_UPDATE: Final = 3.0
_LARGE_GROUP: Final = 5.0
_CALM_GROUP: Final = 2.0
_MANY_CLIPPED: Final = 0.5
_FEW_CLIPPED: Final = 0.1

Vitals = Sequence[tuple[int, Mapping[str, float]]]
"""Steps and what was measured there, oldest first."""


def what_preceded(vitals: Vitals, step: int) -> list[str]:
    """Return what had grown before `step`."""
    recent = [
        (number, values) for number, values in vitals if step - _WINDOW <= number < step and values
    ]
    if len(recent) < _MIN_LOOKS:
        return []
    found = [_output(recent), _update(recent), _clipping(recent), *_groups(recent)]
    return [sentence for sentence in found if sentence]


def _series(recent: Vitals, name: str) -> list[tuple[int, float]]:
    return [(number, values[name]) for number, values in recent if name in values]


def _output(recent: Vitals) -> str:
    series = _series(recent, OUTPUT_NORM)
    if len(series) < _MIN_LOOKS:
        return ""
    last_step, last = series[-1]
    for step, value in reversed(series):
        if 0 < value <= last / _DOUBLED:
            return (
                f"the norm of the output layer's weights had doubled in {last_step - step} steps:"
                f" {value:.3g} at step {step}, {last:.3g} at step {last_step}"
            )
    return ""


def _update(recent: Vitals) -> str:
    series = _series(recent, UPDATE_NORM)
    if len(series) < _MIN_LOOKS:
        return ""
    last_step, last = series[-1]
    usual = median([value for _, value in series[:-1]])
    if not last >= _LARGE_UPDATE * usual > 0:
        return ""
    return (
        f"the update of step {last_step} was {last / usual:.1f} times as large as usual:"
        f" {last:.3g}, and {usual:.3g} in the steps before"
    )


def _clipping(recent: Vitals) -> str:
    series = _series(recent, CLIPPED_SHARE)
    if len(series) < _MIN_LOOKS:
        return ""
    last_step, last = series[-1]
    usual = median([value for _, value in series[:-1]])
    if last < _MANY_CLIPPED or usual > _FEW_CLIPPED:
        return ""
    return (
        f"{last:.0%} of the last 100 steps before step {last_step} were clipped, and"
        f" {usual:.0%} earlier"
    )


def _groups(recent: Vitals) -> list[str]:
    """Say which parameter group's gradients had grown while those of another had not."""
    growths = {}
    for name in recent[-1][1]:
        series = _series(recent, name)
        if name.startswith(GROUP_NORM) and len(series) >= _MIN_LOOKS:
            usual = median([value for _, value in series[:-1]])
            if usual > 0:
                growths[name] = series[-1][1] / usual
    if not any(growth < _CALM_GROUP for growth in growths.values()):
        return []
    return [
        f"the gradients of parameter group {name.removeprefix(GROUP_NORM)} had grown to"
        f" {growth:.1f} times their usual norm at step {recent[-1][0]}"
        for name, growth in growths.items()
        if growth >= _LARGE_GROUP
    ]
