"""The picture of a terminal at the head of the README."""

import re
from xml.etree import ElementTree

import terminal_picture
from rich.text import Text
from terminal_picture import Line


def test_whatever_is_printed_is_drawn_as_text() -> None:
    lines = [Line(Text("$ echo '<script>' & more"), 0.0), Line(Text("a]]>b"), 1.5)]
    tree = ElementTree.fromstring(terminal_picture.drawn(lines))
    words = ["".join(text.itertext()) for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["$ echo '<script>' & more", "a]]>b"]


def test_the_readme_shows_what_the_commands_print() -> None:
    readme = (terminal_picture.PROJECT / "README.md").read_text(encoding="utf-8")
    assert "docs/images/terminal.svg" in readme
    tree = ElementTree.parse(terminal_picture.PICTURE)
    shown = tree.findtext("{http://www.w3.org/2000/svg}desc") or ""
    for command in terminal_picture.COMMANDS:
        assert f"$ {' '.join(command.words)}" in shown
    # The event that the README quotes from the same script.
    quoted = re.search(r"^step 300: loss [\d.]+, expected [\d.]+\.", readme, re.MULTILINE)
    assert quoted is not None
    assert quoted[0] in shown.replace("\n", " ")
