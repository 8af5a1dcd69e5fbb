"""How the verbs speak."""

import json
import sys

import pytest
from rich.cells import cell_len
from rich.text import Text

from sonde.cli.terminal import (
    SafeConsole,
    made_visible,
    print_beside,
    print_first_words,
    print_indented,
    print_rows,
    print_sample,
    screen,
    write_json,
)
from sonde.report.wording import visible


def test_a_piped_table_has_no_spaces_at_the_ends_of_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows(screen(), ("step", ">loss", "note"), [(1, 2.5, "a long note"), (1000, 11.25, None)])
    assert capsys.readouterr().out == "step   loss  note\n1       2.5  a long note\n1000  11.25\n"


def test_a_long_table_is_what_rich_would_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(f"run \x1b{number}", number / 7, "大" * (number % 3)) for number in range(600)]
    terminal = SafeConsole(force_terminal=True, color_system=None, width=120)
    print_rows(terminal, ("name \x1b[2J", ">loss", "note"), rows)
    written = capsys.readouterr().out
    monkeypatch.setattr("sonde.cli.terminal._LONG_TABLE", 1000)
    print_rows(
        terminal,
        (r"name \x1b[2J", ">loss", "note"),
        [(visible(name), *rest) for name, *rest in rows],
    )
    assert written.splitlines() == [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\x1b" not in written
    assert len(written.splitlines()) == 601


def test_a_piped_table_has_one_line_per_row_and_no_header_without_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows(screen(), ("", ""), [("setting", "a\nb " * 100), ("other", 1)])
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "setting",
        "other",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss", "loss"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("\x1b[31mred\x07\r", "\\x1b[31mred\\x07\\r"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("größe 大 \u200d", "größe 大 \u200d"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_what_verbs_print_is_made_visible_and_rich_reads_no_markup_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with made_visible():
        sys.stdout.write("a\x1b[2J\n")
        screen().print("[/x] [red]b\x1b[2J :smile:")
        sys.stderr.write("c\x9b2J\n")
    captured = capsys.readouterr()
    assert captured.out == "a\\x1b[2J\n[/x] [red]b\\x1b[2J :smile:\n"
    assert captured.err == "c\\x9b2J\n"


def test_colours_of_our_own_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with made_visible():
        screen().print(Text("x\x1b[2J", style="red"))
    assert capsys.readouterr().out == "\x1b[31mx\\x1b[2J\x1b[0m\n"


def test_json_is_the_same_value_and_safe_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"\x1b\x9b\u202e": ["\x7f", "ö"]}
    with made_visible():
        write_json(value)
    text = capsys.readouterr().out
    assert visible(text) == text
    assert json.loads(text) == value


def test_a_paragraph_is_wrapped_beside_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    print_beside(SafeConsole(width=20), Text("loss  ", style="bold"), Text("one two three four"))
    assert capsys.readouterr().out.splitlines() == ["loss  one two three", "      four"]


def test_a_path_and_a_command_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/{'x' * 30}/y.txt:7"
    command = "`sonde rollback runs/mine --step 186`"
    print_indented(SafeConsole(width=20), Text(f"see {path} then {command}."), 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["  see", f"  {path}", "  then", f"  {command}."]


def test_text_without_an_end_of_its_code_is_wrapped_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_indented(SafeConsole(width=12), Text("an ` alone ` ` here\n\nand more"), 0)
    words = ["an", "`", "alone", "`", "`", "here", "and", "more"]
    assert capsys.readouterr().out.split() == words


def test_the_text_of_a_sample_is_broken_where_the_line_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_sample(SafeConsole(width=12), Text("x" * 25), 2)
    assert capsys.readouterr().out.splitlines() == [f"  {'x' * num}" for num in (10, 10, 5)]


def test_first_words_fill_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_first_words(SafeConsole(width=12), "大" * 40, 2)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("  大大大大")
    assert line.endswith("…")
    assert cell_len(line) <= 12


def test_piped_output_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert screen().width == 72
