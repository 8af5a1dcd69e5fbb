"""Pages that are made from the code say what the code says: a new verb, flag, name or module shows
in a page's diff.
"""

import re
from pathlib import Path

import cli_page
import module_map
import pages
import pytest

from sonde.cli.main import VERBS

PROJECT = Path(__file__).parents[3]
ARCHITECTURE = (PROJECT / "docs" / "architecture.md").read_text()


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_says_what_the_code_says(name: str) -> None:
    assert (pages.DOCS / name).read_text() == pages.PAGES[name](), (
        "run .venv/bin/python tools/pages.py"
    )


def test_every_verb_has_a_section_and_every_flag_help() -> None:
    page = cli_page.cli_page()
    assert [verb for verb in VERBS if f"## `sonde {verb}" not in page] == []
    assert [line for line in page.splitlines() if line.endswith(": .")] == []


@pytest.mark.slow
def test_check_fails_on_a_page_that_was_edited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, make in pages.PAGES.items():
        (tmp_path / name).write_text(make())
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr("sys.argv", ["pages.py", "--check"])
    assert pages.main() == 0
    (tmp_path / "cli.md").write_text(cli_page.cli_page() + "more")
    assert pages.main() == 1
    said = capsys.readouterr().err
    assert said == "docs/cli.md is not what the code says\nhint: .venv/bin/python tools/pages.py\n"


def test_the_map_has_every_room_and_module_that_stands_directly_in_the_package() -> None:
    table = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", ARCHITECTURE, re.MULTILINE)
    there = {path.stem for path in module_map.PACKAGE.glob("*.py")} - {
        "__init__",
        "__main__",
        "version",
    }
    assert sorted(table) == sorted({*module_map.packages(), *there})


def test_the_map_draws_the_layers_that_import_linter_holds() -> None:
    drawn = re.search(r"^    cli\n(?:    .+\n)+", ARCHITECTURE, re.MULTILINE)
    assert drawn is not None
    shown = [sorted(re.findall(r"\w+", line)) for line in drawn[0].splitlines()]
    held = [
        sorted(layer) for layer in module_map.layers() if layer not in (["__main__"], ["version"])
    ]
    assert shown == held


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/tour.md"])
def test_the_files_that_newcomers_are_sent_to_exist(page: str) -> None:
    named = set(re.findall(r"src/sonde/[\w./]+\.py", (PROJECT / page).read_text()))
    assert len(named) > 12
    assert [path for path in sorted(named) if not (PROJECT / path).exists()] == []


def test_files_that_the_map_names_are_in_their_package() -> None:
    rows = re.findall(r"^\| `([a-z]+)/` \| (.*)", ARCHITECTURE, re.MULTILINE)
    named = [
        (package, name) for package, text in rows for name in re.findall(r"`([a-z_]+\.py)`", text)
    ]
    assert ("records", "journal.py") in named
    assert [
        module
        for module in named
        if not (PROJECT / "src" / "sonde" / module[0] / module[1]).is_file()
    ] == []
