"""docs/statements.md: every statement has a test that exists, and a difference has its reason."""

import importlib
import re
from pathlib import Path

import pytest
from statements_page import ORIGINALS, TABLES, read_original, statements_page

TESTS = Path(__file__).parents[2]


def test_every_table_belongs_to_an_address() -> None:
    assert sorted(path.stem for path in TABLES.glob("*.toml")) == sorted(ORIGINALS)
    for name in ORIGINALS:
        importlib.import_module(f"sonde.compat.{name}")


@pytest.mark.parametrize("name", ORIGINALS)
def test_every_test_that_is_named_exists(name: str) -> None:
    missing = []
    for statement in read_original(name)["statement"]:
        path, _, test = statement["test"].partition("::")
        if not re.search(rf"^def {test}\(", (TESTS / path).read_text(), re.MULTILINE):
            missing.append(statement["test"])
    assert missing == []


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_difference_says_what_is_done_here_and_why(name: str) -> None:
    statements = read_original(name)["statement"]
    keys = {tuple(statement) for statement in statements}
    assert keys <= {("says", "test"), ("says", "test", "here", "why")}
    said = [statement["says"] for statement in statements]
    assert len(said) == len(set(said))


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_page_holds_every_statement_in_one_row(name: str) -> None:
    rows = statements_page().splitlines()
    for statement in read_original(name)["statement"]:
        row = f"| {statement['says']} |"
        assert len([line for line in rows if line.startswith(row)]) == 1
