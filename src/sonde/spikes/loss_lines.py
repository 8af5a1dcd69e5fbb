"""ATorch's line of losses, written and read (docs/formats/atorch-spikes.md).

    2026-01-02 03:04:05 TAB 2001 TAB 10.5 TAB 2.44,2.33,40.05 TAB 20-0-11-22-0,20-0-11-22-1,20-1-1385697-14158189-2

Time, iteration, mean loss, the loss of every sample, and where every sample came from. Reading takes what ATorch writes, also
the `tensor(12.3)` it makes of a tensor, which ATorch itself cannot read back. Costs 2 µs to write, 2 µs to read three samples.
"""

import math
import re
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

_TENSOR: Final = re.compile(r"tensor\(\[?\s*([^\s,\]\)]+).*\)")


class LossLine(NamedTuple):
    """One line, understood."""

    time: str
    """Local time, to the second."""
    iteration: int
    """Of the step."""
    loss: float
    """Mean loss of the step."""
    losses: list[float]
    """Loss of each sample."""
    sample_infos: list[str]
    """Where each sample came from."""

    @property
    def worst(self) -> int:
        """The sample with the highest loss: the first one among equals; NaN is higher than anything."""
        return worst_of(self.losses)


def number_of(value: Any) -> float:
    """A loss as a number, whether it came as one, as text or as a tensor. Raises ValueError when it is none."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            match = _TENSOR.fullmatch(value.strip())
            if match is None:
                raise
            return float(match[1])
    return float(value)


def joined(values: Any, splitter: str) -> str:
    """Losses or sample infos as they stand in a line: text as it is, anything with items joined, None empty."""
    if values is None:
        return ""
    if isinstance(values, str):
        return values
    plain = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(plain, (list, tuple)):
        plain = [plain]
    return splitter.join(str(item.item() if hasattr(item, "item") else item) for item in plain)


def worst_of(losses: Sequence[float]) -> int:
    """The place of the highest loss: the first among equals; NaN is higher than anything."""
    highest = max(losses)
    # max() is wrong around NaN, and a sum that holds one is NaN. Infinities of both signs take the same careful way.
    if math.isnan(math.fsum(losses) if math.isfinite(highest) else math.nan):
        return next((place for place, loss in enumerate(losses) if loss != loss), losses.index(highest))
    return losses.index(highest)


def read_line(line: str, splitter: str, sample_splitter: str) -> LossLine:
    """The content of a line without its newline. Raises ValueError that says what is wrong with it."""
    fields = line.split(splitter)
    if len(fields) != 5:
        raise ValueError(f"{len(fields)} fields instead of 5" if line.strip() else "blank")
    when, iteration, loss, losses, infos = fields
    values = [*map(number_of, losses.split(sample_splitter))] if losses else []
    places = infos.split(sample_splitter) if infos else []
    if len(values) != len(places):
        raise ValueError(f"{len(values)} losses but {len(places)} samples")
    return LossLine(when, int(iteration), number_of(loss), values, places)


@final
class Clock:
    """The time of a line. Formatting it costs more than writing the line does, so it is kept for its second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def text(self) -> str:
        """Now, in local time."""
        second = int(time.time())
        if second != self._second:
            self._text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = second
        return self._text
