"""docs/reliability.md names every fault of the catalogue, and tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_every_fault_has_a_row_and_tests_that_exist() -> None:
    faults, _, tests = PAGE.partition("\n## The tests\n")
    rows = re.findall(r"^\| (\d+) \| .+ \| .+ \|$", faults, re.MULTILINE)
    named = dict(re.findall(r"^(\d+)\. (`.+`(?:,\n +`.+`)*)$", tests, re.MULTILINE))
    assert [int(number) for number in rows] == list(range(1, 53))
    assert list(named) == rows
    for number, tests_of_fault in named.items():
        found = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests_of_fault)
        assert found, f"fault {number} has no test"
        for path, name in found:
            assert f"def {name}(" in (ROOT / path).read_text(), (
                f"fault {number}: {path}::{name} is not there"
            )
