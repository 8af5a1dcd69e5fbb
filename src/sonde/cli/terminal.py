"""What the verbs share when they speak: a console for people, JSON for programs, and how to write a moment or a number (sizes and durations: report/wording.py).

Colour follows the terminal, NO_COLOR and FORCE_COLOR (rich does that). JSON is one document on standard output, with the
spellings of docs/formats/values.md.
"""

import io
import re
import shutil
import sys
import time
from typing import IO, Final, cast, final

from rich.console import Console
from rich.table import Table

from sonde.records.values import encode

_TRAILING_SPACES: Final = re.compile(r" +$", re.MULTILINE)


def screen() -> Console:
    """The console for people. Piped output is not wrapped at 80 columns, a line stays a line; nor padded to a width."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    width = max(shutil.get_terminal_size((160, 24)).columns, 160)
    return Console(highlight=False, width=width, file=cast("IO[str]", _Unpadded()))


def write_json(document: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(encode(document).decode())


def plain_table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines; the columns named in `right` are flush right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", overflow="fold")
    return table


def time_text(seconds: float) -> str:
    """A moment in local time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def number_text(value: object) -> str:
    """A number with six significant digits; anything else as it is."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


@final
class _Unpadded(io.TextIOBase):
    """Standard output, without the spaces that rich fills lines with."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property here, an attribute in typeshed
        return sys.stdout.encoding

    def write(self, text: str) -> int:
        sys.stdout.write(_TRAILING_SPACES.sub("", text))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()
