"""Read and write ATorch's text formats (docs/formats/atorch-spikes.md): lines of losses, and token
ids printed like numpy's.

    2026-01-02 03:04:05 TAB 2001 TAB 10.5 TAB 2.44,2.33,40.05 TAB
        20-0-11-22-0,20-0-11-22-1,20-1-1385697-14158189-2

Time, iteration, mean loss, the loss of every sample, and where every sample came from. Ids are
printed in full, without numpy's ellipsis. Everything that ATorch writes can be read, including the
`tensor(12.3)` it writes for a tensor, which ATorch itself cannot read back.
"""

import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

_N, _BIG_N = b"nN"  # every spelling of NaN contains one of these
# every JSON value other than a number contains one of these
_U, _L, _LIST, _OBJECT, _TEXT = b'ul[{"'
_TOKENS_AT_ONCE: Final = 1 << 16
"""The number of ids whose digits are computed together, chosen so that they fit into the cache."""
_POWERS_OF_TEN: Final = 10 ** np.arange(1, 10)
_TENSOR: Final = re.compile(r"tensor\(\[?\s*([^\s,\]\)]+).*\)")


def read_line(line: bytes, splitter: bytes) -> tuple[bytes, int, float, bytes, bytes]:
    """Parse a line, which may still have its newline. Raises ValueError with what is wrong.

    Returns its time, iteration and mean loss, and the unparsed losses and infos of the samples. The
    texts stay bytes, and the last may end in a newline, because most lines are only scanned.
    """
    fields = line.split(splitter)
    if len(fields) != 5:
        raise ValueError(f"{len(fields)} fields instead of 5" if line.strip() else "blank")
    when, iteration, loss, losses, infos = fields
    try:
        mean = float(loss)
    except ValueError:
        mean = number_of(text_of(loss))
    return when, int(iteration), mean, losses, infos


def worst_sample(losses: bytes, infos: bytes, splitter: bytes) -> tuple[float, str]:
    """Return the loss and info of the worst sample (the first of equals; NaN is worst). Raises
    ValueError.
    """
    numbers = _numbers(losses, infos, splitter)
    highest = max(numbers)
    place = numbers.index(highest)
    if _N in losses or _BIG_N in losses:  # max() may miss a NaN
        place = next((at for at, loss in enumerate(numbers) if loss != loss), place)
        highest = numbers[place]
    # Split from the nearer end, so that most of the infos need not be split.
    from_end = len(numbers) - place
    if from_end <= place:
        info = infos.rsplit(splitter, from_end)[-from_end]
    else:
        info = infos.split(splitter, place + 1)[place]
    return float(highest), text_of(info.rstrip(b"\r\n"))


def all_samples(losses: bytes, infos: bytes, splitter: bytes) -> list[tuple[float, str]]:
    """Return the loss and info of every sample, worst first. Raises ValueError."""
    numbers = _numbers(losses, infos, splitter)
    samples = zip(
        map(float, numbers), map(text_of, infos.rstrip(b"\r\n").split(splitter)), strict=True
    )
    return sorted(samples, key=lambda sample: (sample[0] == sample[0], -sample[0]))


def text_of(field: bytes) -> str:
    """Decode a field as text, whatever it contains."""
    return field.decode("utf-8", "backslashreplace")


def _numbers(losses: bytes, infos: bytes, splitter: bytes) -> list[float]:
    """Parse the losses. Raises ValueError unless there is one for each info."""
    numbers = _parsed(losses, splitter)
    if infos.count(splitter) + 1 != len(numbers):
        raise ValueError(f"{len(numbers)} losses but {infos.count(splitter) + 1} samples")
    return numbers


def _parsed(losses: bytes, splitter: bytes) -> list[float]:
    if splitter == b"," and not (
        _U in losses or _L in losses or _LIST in losses or _OBJECT in losses or _TEXT in losses
    ):
        try:
            # Several times faster than calling float() on each.
            if numbers := orjson.loads(b"[%b]" % losses):
                # numbers alone, as no other character is there
                return numbers  # type: ignore[no-any-return]
        except orjson.JSONDecodeError:
            pass  # such as nan, .5, or 1e999
    if not losses:
        raise ValueError("no samples")
    try:
        return [*map(float, losses.split(splitter))]
    except ValueError:
        return [number_of(text_of(loss)) for loss in losses.split(splitter)]


def number_of(value: Any) -> float:
    """Convert a loss to a number from a number, a text or a tensor. Raises ValueError if it is none
    of these.
    """
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except ValueError:
        match = _TENSOR.fullmatch(str(value).strip())
        if match is None:
            raise
        return float(match[1])


def joined(values: Any, splitter: str) -> str:
    """Format losses or sample infos for a line: text unchanged, sequences joined, None empty."""
    if values is None:
        return ""
    if isinstance(values, str):
        return values
    plain = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(plain, (list, tuple)):
        plain = [plain]
    return splitter.join(str(_plain_number(value)) for value in plain)


def _plain_number(value: Any) -> Any:
    """Return a number of numpy or torch as one of Python; anything else as it is."""
    return value.item() if hasattr(value, "item") else value


@lru_cache(maxsize=1)
def time_text(second: int) -> str:
    """Format a time for a line. Formatting costs more than writing the line, so the text is cached
    for its second.
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


def ids_text(tokens: Sequence[int]) -> str:
    """Format ids in brackets, right-aligned like numpy's, without its ellipsis and line breaks."""
    words = [*map(str, tokens)]
    width = max(map(len, words), default=0)
    return f"[{' '.join([word.rjust(width) for word in words])}]"


def ids_texts(rows: Sequence[Any]) -> list[str]:
    """Format every row with `ids_text`; several times faster for arrays of equal length, whose
    digits are computed together.
    """
    if {*map(type, rows)} != {np.ndarray} or len({*map(len, rows)}) > 1 or not len(rows[0]):
        return [*map(ids_text, rows)]
    table = np.concatenate(rows).reshape(len(rows), -1)
    widths = 1 + np.searchsorted(_POWERS_OF_TEN, table.max(axis=1), side="right")
    widths[table.min(axis=1) < 0] = 0  # no token id is negative, but a file may contain anything
    texts = [""] * len(rows)
    at_once = max(1, _TOKENS_AT_ONCE // table.shape[1])
    for width in np.unique(widths).tolist():
        places = np.flatnonzero(widths == width)
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            made = _padded(table[some], width) if width else map(ids_text, table[some].tolist())
            for place, text in zip(some.tolist(), made, strict=True):
                texts[place] = text
    return texts


def _padded(rows: NDArray[np.int32], width: int) -> list[str]:
    """Format rows of non-negative ids with at most `width` digits, each in as many columns."""
    # a space, then the right-aligned id
    columns = np.full((*rows.shape, 1 + width), ord(" "), np.uint8)
    rest = rows
    is_shown = np.ones(rows.shape, bool)
    for column in range(width, 0, -1):
        above = rest // 10
        np.copyto(
            columns[:, :, column], rest - 10 * above + ord("0"), where=is_shown, casting="unsafe"
        )
        rest = above
        is_shown = above > 0
    columns[:, 0, 0] = ord("[")
    size = columns[0].size
    text = columns.tobytes().decode("ascii")
    return [f"{text[start : start + size]}]" for start in range(0, len(text), size)]
