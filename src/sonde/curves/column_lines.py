"""Logs that print a header now and then and numbers in columns below it: fastai, spaCy,
Ultralytics. Pure.

    rows_of_columns(lines)     a row for every line of numbers below a header with a loss
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from sonde.curves.names import is_loss
from sonde.curves.points import Row, number_in, usual_name

_MAX_LINE: Final = 4000
_GAP: Final = re.compile(r"\s{2,}|\t")
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MIN_COLUMNS: Final = 3


def rows_of_columns(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the numbers below every header that names a loss. A header of something else, such as
    that of an evaluation, ends the columns.
    """
    header: list[str] = []
    for line in lines:
        if len(line) > _MAX_LINE:
            continue
        text = _ANSI.sub("", line).strip()
        titles = _GAP.split(text)
        if _is_header(titles):
            header = [usual_name(title) for title in titles] if any(map(is_loss, titles)) else []
        elif header:
            row = _row_below(header, text.split())
            if row:
                yield row


def _is_header(titles: list[str]) -> bool:
    """Return whether these are words with wide gaps between them."""
    has_words = all(any(map(str.isalpha, title)) or title == "#" for title in titles)
    return len(titles) >= _MIN_COLUMNS and has_words and not any(map(_leading_number, titles))


def _row_below(header: list[str], cells: list[str]) -> Row:
    """Return the numbers of a line, or nothing if it is no line of this table: it begins with a
    number, has a cell for every column and numbers in most of them.
    """
    if len(cells) < len(header) or _leading_number(cells[0]) is None:
        return {}
    row: Row = {}
    for title, cell in zip(header, cells, strict=False):
        number = _leading_number(cell) if title == header[0] else number_in(cell)
        if number is not None:
            row[title] = number
    return row if 2 * len(row) > len(header) else {}


def _leading_number(cell: str) -> float | None:
    """Return a number, or that of `217/400`."""
    return number_in(cell.partition("/")[0])
