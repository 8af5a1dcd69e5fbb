"""The public names: listed once, resolved lazily, known to type checkers, documented."""

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

import sonde

PROJECT = Path(__file__).parents[2]


def root_tree() -> ast.Module:
    return ast.parse((PROJECT / "src" / "sonde" / "__init__.py").read_text(encoding="utf-8"))


def assigned(name: str) -> Any:
    """The literal that the root module assigns to `name`."""
    for node in root_tree().body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{name} is not a literal in sonde/__init__.py")


def homes_for_type_checkers() -> dict[str, str]:
    """Name and module of each import in the TYPE_CHECKING block."""
    found: dict[str, str] = {}
    for node in root_tree().body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                assert isinstance(line, ast.ImportFrom), f"line {line.lineno} is not `from … import …`"
                for alias in line.names:
                    assert alias.asname == alias.name, f"{alias.name} is not re-exported: write `X as X`"
                    found[alias.name] = str(line.module)
    return found


@pytest.mark.parametrize("name", sonde.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(sonde, name) is not None


def test_the_three_lists_of_names_agree() -> None:
    homes = assigned("_HOMES")
    assert sorted(assigned("__all__")) == sorted([*homes, "__version__"])
    assert homes_for_type_checkers() == homes


def test_each_name_is_defined_where_the_list_says() -> None:
    for name, home in assigned("_HOMES").items():
        if home == "sonde":  # a room
            assert getattr(sonde, name) is importlib.import_module(f"sonde.{name}")
            continue
        value = getattr(importlib.import_module(home), name, None)
        defined_in = getattr(value, "__module__", home)
        assert defined_in == home, f"{name} comes from {defined_in}"


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sonde' has no attribute 'Runn'"):
        _ = sonde.Runn


def test_dir_lists_the_public_names() -> None:
    assert set(sonde.__all__) <= set(dir(sonde))


def test_each_public_name_has_a_line_in_the_documentation_and_none_is_made_up() -> None:
    page = (PROJECT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(sonde.__all__)
