"""docs/reliability.md names every fault of the catalogue, and tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_every_fault_has_a_row_with_tests_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \| .+ \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 53))
    for number, named in rows:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", named)
        assert tests, f"fault {number} has no test"
        for path, name in tests:
            assert f"def {name}(" in (ROOT / path).read_text(), f"fault {number}: {path}::{name} is not there"
