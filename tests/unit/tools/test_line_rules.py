"""The rules for readable lines: what they catch, let pass, and that their list shrinks."""

import ast
import json
import sys
from pathlib import Path

import line_rules
import pytest

CAUGHT = {
    "tuples": "a, b = first(), second()",
    "nested_ifs": "a = 1 if x else 2 if y else 3",
    "products": "text = 's' * (n != 1)",
    "loops": "total = sum(one for one in losses)",
}


@pytest.mark.parametrize(("kind", "line"), CAUGHT.items())
def test_catches(kind: str, line: str) -> None:
    assert [habit.kind for habit in line_rules.habits(ast.parse(line))] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "a, b = b, a",
        "a, b = pair",
        "a = 1 if x else 2",
        "area = width * height",
        "masked = losses * bool_mask",
        "for loss in losses:\n    pass",
        "one = 1",
    ],
)
def test_lets_pass(line: str) -> None:
    assert list(line_rules.habits(ast.parse(line))) == []


def test_complexity_counts_conditional_expressions_and_boolean_operators() -> None:
    lines = [f"    a = x if x and y or z else {number}" for number in range(5)]
    (found,) = line_rules.complex_functions(ast.parse("\n".join(["def f(x, y, z):", *lines])))
    assert found == ("f", 1, 16)


def project_with(folder: Path, line: str, listed: dict[str, dict[str, int]]) -> Path:
    (folder / "src").mkdir()
    (folder / "tools").mkdir()
    (folder / "src" / "box.py").write_text(line)
    (folder / line_rules.LIST).write_text(json.dumps(listed))
    return folder


@pytest.mark.parametrize(
    ("line", "listed", "said"),
    [
        ("a, b = 1, 2\n", {}, "src/box.py: tuples 1, listed 0 (lines 1)"),
        ("a = 1\n", {"src/box.py": {"tuples": 1}}, "src/box.py: tuples 0, listed 1: run"),
    ],
)
def test_a_count_above_or_below_the_list_fails(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    listed: dict[str, dict[str, int]],
    said: str,
) -> None:
    project = project_with(tmp_path, line, listed)
    monkeypatch.setattr(sys, "argv", ["line_rules.py", str(project)])
    assert line_rules.main() == 1
    assert capsys.readouterr().out.startswith(said)


def test_shrinking_lowers_counts_and_never_raises_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"src/box.py": {"tuples": 3, "loops": 1}, "src/gone.py": {"tuples": 1}}
    project = project_with(tmp_path, "a, b = 1, 2\nc = 1 if a else 2 if b else 3\n", listed)
    monkeypatch.setattr(sys, "argv", ["line_rules.py", str(project), "--shrink"])
    assert line_rules.main() == 1  # the nested condition is not on the list, and stays off it
    assert json.loads((project / line_rules.LIST).read_text()) == {"src/box.py": {"tuples": 1}}
