"""Output shared by all verbs: a console for people, JSON for programs, and the formatting of
numbers.

Sizes, times and durations are formatted in report/wording.py.

Everything printed may come from a file that somebody else wrote, such as a metric's name or a
sentence of the corpus. All of it passes through `visible` (report/wording.py), which shows control
characters and bidirectional marks as escapes. Verbs need not call it: `made_visible` applies it to
standard output and standard error, and `SafeConsole` is a rich console that does the same and
ignores markup.

Colour follows the terminal, NO_COLOR and FORCE_COLOR (handled by rich). JSON is one document on
standard output, with values written as in docs/formats/values.md.
"""

import contextlib
import csv
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from sonde.errors import MissingDependency
from sonde.report.wording import INVISIBLE, middle, visible

MAX_WIDTH: Final = 100
"""Text is wrapped here on a wider terminal: longer lines are hard to read."""
_MAX_JSON_BYTES: Final = 1 << 32
_LONG_TABLE: Final = 500
_SHORTEST_NAME: Final = 12
_WORD: Final = re.compile(r"((?:`[^`\n]*`|[^\s`])+|\S)\s*")
"""A word and the space after it. A command in backticks is one word: it is copied as a whole."""


@contextlib.contextmanager
def made_visible() -> Iterator[None]:
    """Context in which everything written to standard output and standard error is made safe to
    show.
    """
    out = sys.stdout
    err = sys.stderr
    sys.stdout = cast("TextIO", _Visible(out))
    sys.stderr = cast("TextIO", _Visible(err))
    try:
        yield
    finally:
        sys.stdout = out
        sys.stderr = err


def data_output() -> TextIO:
    """Return the stream for output that must be exact: unfiltered standard output, or the filtered
    one on a terminal.
    """
    return (
        sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    )


class SafeConsole(Console):
    """A console that shows text as it is: no markup, no emoji codes, and nothing that acts on the
    terminal.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render like rich, with every piece of text made safe to show. Rich's own control codes
        pass.
        """
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def screen() -> Console:
    """Return the console for people. Piped output is wrapped at 160 columns, or as COLUMNS says."""
    if sys.stdout.isatty():
        return SafeConsole()
    return SafeConsole(width=shutil.get_terminal_size((160, 24)).columns)


def write_json(document: object) -> None:
    """Write one JSON document to standard output."""
    data_output().write(json_text(document))


def json_text(document: object) -> str:
    """Return a value as one line of JSON that is safe to show."""
    from sonde.records.values import encode  # brings numpy, as in wording.py

    # orjson escapes what JSON requires. Other unsafe characters occur only inside strings, where
    # JSON can escape them.
    text = encode(document, max_bytes=_MAX_JSON_BYTES).decode()
    return INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def tell(document: object, show: Callable[[Console], None], *, json: bool) -> None:
    """Print the answer of a verb: one JSON document for programs, or what `show` prints for
    people.
    """
    if json:
        write_json(document)
    else:
        show(screen())


def picked(thing: object, *names: str) -> dict[str, Any]:
    """Return the named attributes of an object as a dict."""
    return {name: getattr(thing, name) for name in names}


def print_rows(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    cut_names: bool = False,
) -> None:
    """Print a table without rules. Columns whose name begins with `>` are right-aligned;
    `number_text` formats numbers.

    On a terminal, cells wrap and have colours. With `cut_names`, the names in the first column are
    cut in the middle instead, where a row would not fit. A long table, for which rich takes a
    millisecond per row, and one that goes to a file are written line by line.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    headings = [_Heading(name.removeprefix(">"), name.startswith(">")) for name in columns]
    if cut_names and console.is_terminal:
        cells = _with_names_cut(console, headings, cells)
    if console.is_terminal and len(cells) < _LONG_TABLE:
        _print_table(console, headings, cells)
    else:
        _print_lines(console, headings, cells)


def _with_names_cut(
    console: Console, headings: Sequence["_Heading"], rows: list[list[Text]]
) -> list[list[Text]]:
    """Return the rows with their first cells cut to what the other columns leave."""
    others = [
        max(cell_len(heading.name), *(row[place].cell_len for row in rows))
        for place, heading in enumerate(headings)
        if place and rows
    ]
    room = max(console.width - sum(others) - 2 * len(headings), _SHORTEST_NAME)
    return [
        [Text(middle(row[0].plain, room), style=row[0].style), *row[1:]] if row else row
        for row in rows
    ]


class _Heading(NamedTuple):
    """The head of a column."""

    name: str
    is_right: bool


def _cell(value: object) -> Text:
    return value if isinstance(value, Text) else Text(number_text(value))


def _print_table(
    console: Console, headings: Sequence[_Heading], rows: Sequence[Sequence[Text]]
) -> None:
    """Print a table by rich."""
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        show_header=any(heading.name for heading in headings),
    )
    for heading in headings:
        justify: JustifyMethod = "right" if heading.is_right else "left"
        table.add_column(Text(heading.name), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_lines(
    console: Console, headings: Sequence[_Heading], rows: Sequence[Sequence[Text]]
) -> None:
    """Print a table as plain lines, each as wide as its content."""
    lines = [[_on_one_line(cell.plain) for cell in row] for row in rows]
    if any(heading.name for heading in headings):
        lines.insert(0, [_on_one_line(heading.name) for heading in headings])
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        filled = []
        for text, heading, width in zip(line, headings, widths, strict=True):
            padding = " " * (width - cell_len(text))
            filled.append(padding + text if heading.is_right else text + padding)
        console.file.write("  ".join(filled).rstrip() + "\n")


def _on_one_line(text: str) -> str:
    return visible(text).replace("\n", " ")


def print_indented(console: Console, text: Text, indent: int) -> None:
    """Print a paragraph with every line indented by `indent` columns; after a bullet, lines begin
    below its text.
    """
    if text.plain.startswith(("· ", "→ ")):
        print_beside(console, Text(" " * indent).append_text(text[:2]), text[2:])
    else:
        print_beside(console, Text(" " * indent), text)


def print_beside(console: Console, label: Text, text: Text) -> None:
    """Print a paragraph beside its label. A word that does not fit in a line is not broken: it may
    be a path that somebody wants to copy.
    """
    width = max(console.width - label.cell_len, 1)
    begin = label
    for line in _wrapped(text, width):
        line.rstrip()
        console.print(Text.assemble(begin, line), soft_wrap=True)
        begin = Text(" " * label.cell_len)


def print_sample(console: Console, text: Text, indent: int) -> None:
    """Print the text of a sample, indented. Unlike in a sentence, its words may be broken: garbled
    text has no spaces.
    """
    for line in text.wrap(console, max(console.width - indent, 1)):
        line.rstrip()
        console.print(Text.assemble(" " * indent, line), soft_wrap=True)


def print_first_words(console: Console, text: str, indent: int, style: str = "") -> None:
    """Print the beginning of a text, as much of it as one line holds."""
    line = Text(" ".join(text.split()), style=style)
    line.truncate(max(console.width - indent, 1), overflow="ellipsis")
    console.print(Text.assemble(" " * indent, line), soft_wrap=True)


def _wrapped(text: Text, width: int) -> list[Text]:
    """Return the lines of a text, each at most `width` wide unless a single word is wider."""
    lines: list[Text] = []
    for paragraph in text.split(allow_blank=True):
        breaks = []
        used = 0
        for word in _WORD.finditer(paragraph.plain):
            if used and used + cell_len(word[1]) > width:
                breaks.append(word.start())
                used = 0
            used += cell_len(word[0])
        lines += paragraph.divide(breaks)
    return lines


def print_csv(rows: Iterable[Iterable[object]], file: TextIO | None = None) -> None:
    """Write CSV to standard output or `file`. None becomes an empty cell; spreadsheet formulas are
    escaped.
    """
    from sonde.log.backends.csv import safe_cell

    writer = csv.writer(file or sys.stdout, lineterminator="\n")
    writer.writerows([["" if cell is None else safe_cell(cell) for cell in row] for row in rows])


def needs(verb: str, *packages: str) -> None:
    """Raise unless these packages of the extra `train` are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingDependency(package, needed_for=verb, extra="train")


def coloured(tokens: Iterable[str], losses: Iterable[float], usual: float) -> Text:
    """Return a text with its tokens coloured by loss: yellow from twice the usual loss on, red from
    four times.
    """
    text = Text()
    for token, loss in zip(tokens, losses, strict=True):
        style = "black on yellow" if loss < 4 * usual else "bold white on red"
        text.append(token, style="" if loss < 2 * usual else style)
    return text


def number_text(value: object) -> str:
    """Format a float with six significant digits; anything else with `str`, and None as an empty
    string.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


class _Visible:
    """A text stream that escapes whatever would act on a terminal. Everything else is delegated to
    the wrapped stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The wrapped stream. Rich writes here directly, since SafeConsole has already made the
        text safe.
        """

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(visible(text))
