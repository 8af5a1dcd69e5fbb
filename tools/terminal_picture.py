"""Writes docs/images/terminal.svg, the picture at the head of the README: a terminal in which
examples/first_run.py is trained, and its event is diagnosed.

    python tools/terminal_picture.py            about ten seconds

The commands are run, and what they print is drawn line by line; long answers are cut at `…`. The
picture is one file without scripts, fonts or links: lines appear one after another, and stay.
"""

import html
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.style import Style
from rich.text import Text

PROJECT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = PROJECT / "docs" / "images" / "terminal.svg"
SCRIPT: Final = "first_run.py"
COLUMNS: Final = 80

_LINE: Final = 19
_LETTER: Final = 8.43
_MARGIN: Final = 20
_HEAD: Final = 34
_PAUSE: Final = 1.2
"""Seconds before the answer to a command appears."""
_EACH: Final = 0.08
"""Seconds between two lines of an answer."""
_COLORS: Final = {1: "#f47067", 2: "#57ab5a", 3: "#c69026", 4: "#539bf5", 6: "#39c5cf"}
"""Of the terminal's colors, those that sonde uses."""
_PLAIN: Final = "#cdd9e5"
_DIM: Final = "#8b949e"


class Command(NamedTuple):
    """A command, and how many lines of its answer are shown."""

    words: tuple[str, ...]
    num_lines: int


COMMANDS: Final = (
    Command(("python", SCRIPT), 9),
    Command(("sonde", "diagnose", "runs/first", "--", "python", SCRIPT), 17),
)


class Line(NamedTuple):
    """A line of the terminal, and when it appears."""

    text: Text
    seconds: float


def main() -> None:
    """Run the commands, and draw them."""
    PICTURE.write_text(drawn(list(recorded())), encoding="utf-8")


def recorded() -> Iterator[Line]:
    """Yield the lines of the terminal."""
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PROJECT / "examples" / SCRIPT, folder)
        for command in COMMANDS:
            yield Line(Text(f"$ {' '.join(command.words)}", style="bold"), seconds)
            seconds += _PAUSE
            lines = _answer(command.words, Path(folder))
            for text in lines[: command.num_lines]:
                yield Line(text, seconds)
                seconds += _EACH
            if len(lines) > command.num_lines:
                yield Line(Text("  …", style="dim"), seconds)
            seconds += _PAUSE
            yield Line(Text(), seconds)


def _answer(words: tuple[str, ...], folder: Path) -> list[Text]:
    """Run a command as in a terminal and return its lines."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    terminal = {"PATH": path, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["/usr/bin/env", *words],
        cwd=folder,
        env={**os.environ, **terminal},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    screen = Console(width=COLUMNS)
    lines: list[Text] = []
    for line in done.stdout.replace(f"{folder}/", "").splitlines():
        lines += Text.from_ansi(line).wrap(screen, COLUMNS)
    return lines


def drawn(lines: list[Line]) -> str:
    """Return the picture."""
    width = round(2 * _MARGIN + COLUMNS * _LETTER)
    height = _HEAD + len(lines) * _LINE + _MARGIN
    rows = [_row(line, _HEAD + (number + 1) * _LINE) for number, line in enumerate(lines)]
    description = html.escape("\n".join(line.text.plain for line in lines))
    dots = "".join(
        f'<circle cx="{_MARGIN + 18 * number}" cy="18" r="6" fill="{color}"/>'
        for number, color in enumerate(("#f47067", "#c69026", "#57ab5a"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>A terminal: a training, and the diagnosis of its event</title>
<desc>{description}</desc>
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
.line {{ opacity: 0; animation: appear 0.1s forwards }}
@keyframes appear {{ to {{ opacity: 1 }} }}
@media (prefers-reduced-motion: reduce) {{ .line {{ opacity: 1; animation: none }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#22272e"/>
{dots}
{chr(10).join(rows)}
</svg>
"""


def _row(line: Line, y: int) -> str:
    """Return one line: its parts of one style, each at its column."""
    column = 0
    parts: list[str] = []
    for segment in line.text.render(Console(width=COLUMNS)):
        text = segment.text.rstrip("\n")
        if text.strip():
            x = _MARGIN + column * _LETTER
            look = f'x="{x:.1f}" textLength="{len(text) * _LETTER:.1f}" {_look(segment.style)}'
            parts.append(f"<tspan {look}>{html.escape(text)}</tspan>")
        column += len(text)
    delay = f"animation-delay:{line.seconds:.2f}s"
    return f'<text class="line" style="{delay}" y="{y}">{"".join(parts)}</text>'


def _look(style: Style | None) -> str:
    """Return the attributes of a part of a line."""
    color = _PLAIN
    if style is not None and style.dim:
        color = _DIM
    if style is not None and style.color is not None:
        color = _COLORS.get(style.color.number or 0, _PLAIN)
    weight = ' font-weight="bold"' if style is not None and style.bold else ""
    return f'fill="{color}"{weight}'


if __name__ == "__main__":
    main()
