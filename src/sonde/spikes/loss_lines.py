"""ATorch's line of losses, written and read (docs/formats/atorch-spikes.md).

    2026-01-02 03:04:05 TAB 2001 TAB 10.5 TAB 2.44,2.33,40.05 TAB 20-0-11-22-0,20-0-11-22-1,20-1-1385697-14158189-2

Time, iteration, mean loss, the loss of every sample, and where every sample came from. Reading takes what ATorch writes, also
the `tensor(12.3)` it makes of a tensor, which ATorch itself cannot read back.
"""

import re
import time
from typing import Any, Final, NamedTuple, final

import orjson

_LONG_TEXT: Final = 64
"""Characters from which a JSON parser is worth its call."""
_TENSOR: Final = re.compile(r"tensor\(\[?\s*([^\s,\]\)]+).*\)")


class LossLine(NamedTuple):
    """One line, its samples not yet taken apart."""

    time: str
    """Local time, to the second."""
    iteration: int
    """Of the step."""
    loss: float
    """Mean loss of the step."""
    losses: str
    """Loss of each sample."""
    sample_infos: str
    """Where each sample came from."""


def read_line(line: str, splitter: str) -> LossLine:
    """The content of a line without its newline. Raises ValueError that says what is wrong with it."""
    fields = line.split(splitter)
    if len(fields) != 5:
        raise ValueError(f"{len(fields)} fields instead of 5" if line.strip() else "blank")
    when, iteration, loss, losses, infos = fields
    try:
        mean = float(loss)
    except ValueError:
        mean = number_of(loss)
    return LossLine(when, int(iteration), mean, losses, infos)


def worst_sample(line: LossLine, splitter: str) -> tuple[float, str]:
    """Loss and info of the worst sample: the first among equals; NaN is worse than anything. Raises ValueError."""
    losses, worst = _losses(line, splitter), -1
    # Only text with an n in it can be NaN, which max() would get wrong.
    if "n" in line.losses or "N" in line.losses:
        worst = next((place for place, loss in enumerate(losses) if loss != loss), -1)
    if worst < 0:
        worst = losses.index(max(losses))
    # From the nearer end: most of the infos need not be taken apart.
    from_end = len(losses) - worst
    if from_end <= worst:
        return float(losses[worst]), line.sample_infos.rsplit(splitter, from_end)[-from_end]
    return float(losses[worst]), line.sample_infos.split(splitter, worst + 1)[worst]


def all_samples(line: LossLine, splitter: str) -> list[tuple[float, str]]:
    """Loss and info of every sample, worst first. Raises ValueError."""
    samples = zip(map(float, _losses(line, splitter)), line.sample_infos.split(splitter), strict=True)
    return sorted(samples, key=lambda sample: (sample[0] == sample[0], -sample[0]))


def _losses(line: LossLine, splitter: str) -> list[float]:
    text = line.losses
    losses: list[float] = []
    # JSON may have true, false, null, lists, objects and texts where a number should stand: those are left to float().
    if (
        len(text) > _LONG_TEXT
        and splitter == ","
        and not ("u" in text or "n" in text or "l" in text or "[" in text or "{" in text or '"' in text)
    ):
        try:
            losses = orjson.loads(f"[{text}]")  # several times faster than float() one by one
        except orjson.JSONDecodeError:
            pass
    if not losses:
        if not text:
            raise ValueError("no samples")
        try:
            losses = [*map(float, text.split(splitter))]
        except ValueError:
            losses = [*map(number_of, text.split(splitter))]
    if len(losses) != line.sample_infos.count(splitter) + 1:
        raise ValueError(f"{len(losses)} losses but {line.sample_infos.count(splitter) + 1} samples")
    return losses


def number_of(value: Any) -> float:
    """A loss as a number, whether it came as one, as text or as a tensor. Raises ValueError when it is none."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except ValueError:
        match = _TENSOR.fullmatch(str(value).strip())
        if match is None:
            raise
        return float(match[1])


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
