"""Steps: where in the training a record belongs.

    7                    iteration 7
    (2, 7), [2, 7]       epoch 2, iteration 7
    (2, 7, 3)            … and validation iteration 3 within it
    (2,)                 epoch 2 as a whole
    (), None             the run as a whole
    "PARAMETER"          a name, as given

A step is kept as given (tuples come back as lists); nothing here changes it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sonde.records.values import step_numbers

_NAMES = ("Epoch", "Iteration", "Validation Iteration")


class StepParts(NamedTuple):
    """The numbers of a step; None for parts it does not have."""

    epoch: int | None = None
    iteration: int | None = None
    validation_iteration: int | None = None


def step_parts(step: object) -> StepParts:
    """Return the numbers of `step`; all None for a name or anything that is not a step."""
    numbers = step_numbers(step)
    if not numbers:
        return StepParts()
    if isinstance(step, (list, tuple)):
        return StepParts(*numbers)
    return StepParts(iteration=numbers[0])


TABLE_COLUMNS: Final = ("datetime", "timestamp", "elapsedtime", "rank", "step", *StepParts._fields)
"""The first columns of a table of LOG records."""


def table_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a LOG record as the row of a table: TABLE_COLUMNS, then every metric.

    A metric may have the same name as one of our columns (TCAP users log their rank): it is
    prefixed with `data.`.
    """
    row = {name: record[name] for name in TABLE_COLUMNS[:5]} | step_parts(record["step"])._asdict()
    for name, value in record["data"].items():
        row[f"data.{name}" if name in TABLE_COLUMNS else str(name)] = value
    return row


def step_text(step: object) -> str:
    """Return the step as shown on screen, with a space after each part: `Epoch: 0 Iteration: 1
    `.
    """
    if isinstance(step, (list, tuple)):
        return "".join(f"{name}: {part} " for name, part in zip(_NAMES, step, strict=False))
    if step is None:
        return ""
    if isinstance(step, str):
        return step.replace("\n", "\\n")
    return f"Iteration: {step} "


class StepCounter:
    """One integer per step, for trackers without epochs.

    If iterations restart in each epoch, they are continued, so that a curve does not overlap
    itself; iterations that already count through are left unchanged. Going back to an epoch goes
    back to its numbers.
    """

    def __init__(self) -> None:
        self._last = 0
        self._last_parts = StepParts()
        self._offsets: dict[int, int] = {}
        """The number at which the iterations of each epoch begin."""

    def number(self, step: object) -> int:
        """Return the step as one number; a name or an empty step gets that of the previous step."""
        parts = step_parts(step)
        if parts.iteration is None:
            # A whole epoch gets the number at its end, or its own number if there are no
            # iterations.
            if parts.epoch is not None and self._last_parts.iteration is None:
                self._last = parts.epoch
            return self._last
        if parts.epoch is None:
            self._last = parts.iteration
        else:
            self._last = self._offset(parts.epoch, parts.iteration) + parts.iteration
        self._last_parts = parts
        return self._last

    def _offset(self, epoch: int, iteration: int) -> int:
        if epoch not in self._offsets:
            before = self._last_parts
            restarted = before.iteration is not None and iteration < before.iteration
            if before.epoch is not None and epoch > before.epoch and restarted:
                self._offsets[epoch] = self._last + 1
            else:
                self._offsets[epoch] = (
                    self._offsets.get(before.epoch, 0) if before.epoch is not None else 0
                )
        return self._offsets[epoch]
