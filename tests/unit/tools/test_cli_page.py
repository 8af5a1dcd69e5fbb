"""docs/cli.md is written from the commands: a new verb or flag is a promise to every user, and shows in the page's diff."""

import cli_page
import pytest

from sonde.cli.main import VERBS


def test_the_page_says_what_the_commands_say() -> None:
    assert cli_page.PAGE.read_text() == cli_page.cli_page(), "run .venv/bin/python tools/cli_page.py"


def test_every_verb_has_a_section_and_every_flag_help() -> None:
    page = cli_page.cli_page()
    assert [verb for verb in VERBS if f"## `sonde {verb}" not in page] == []
    assert [line for line in page.splitlines() if line.endswith(": .")] == []


def test_check_fails_on_a_page_that_was_edited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _check(monkeypatch, cli_page.cli_page()) == 0
    assert _check(monkeypatch, cli_page.cli_page() + "more") == 1
    assert "hint: .venv/bin/python tools/cli_page.py" in capsys.readouterr().err


def _check(monkeypatch: pytest.MonkeyPatch, written: str) -> int:
    class Page:
        @staticmethod
        def read_text() -> str:
            return written

    monkeypatch.setattr(cli_page, "PAGE", Page)
    monkeypatch.setattr("sys.argv", ["cli_page.py", "--check"])
    return cli_page.main()
