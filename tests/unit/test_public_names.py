"""The public names: listed once in the stubs, resolved lazily, documented, and all that docs and
examples use.
"""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import api_page
import pytest

import sonde

PROJECT = Path(__file__).parents[2]
MODULES = ("sonde", *(f"sonde.{package}" for package in api_page.PACKAGES))
STUBS = sorted((PROJECT / "src" / "sonde").rglob("__init__.pyi"))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_resolves(module: str) -> None:
    found = importlib.import_module(module)
    names = api_page.names_of(module.removeprefix("sonde.")) if module != "sonde" else dir(sonde)
    assert names
    assert [name for name in names if getattr(found, name, None) is None] == []


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_a_stub_holds_nothing_but_names_in_order(stub: Path) -> None:
    lines = stub.read_text().splitlines()
    assert [
        line for line in lines if not re.fullmatch(r"from sonde[\w.]* import \w+ as \w+", line)
    ] == []
    assert lines == sorted(lines)


@pytest.mark.parametrize("module", MODULES)
def test_a_public_function_that_takes_a_path_takes_text_too(module: str) -> None:
    found = importlib.import_module(module)
    functions = [
        (name, value) for name in dir(found) if inspect.isfunction(value := getattr(found, name))
    ]
    only_paths = [
        f"{name}({parameter.name})"
        for name, function in functions
        for parameter in inspect.signature(function).parameters.values()
        if re.search(r"\bPath\b", str(parameter.annotation))
        and not re.search(r"\bstr\b", str(parameter.annotation))
    ]
    assert only_paths == []


@pytest.mark.parametrize("module", MODULES)
def test_a_public_name_says_which_module_defines_it(module: str) -> None:
    found = importlib.import_module(module)
    for name in vars(found).get("__all__", []):
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert getattr(importlib.import_module(value.__module__), value.__name__) is value
        if inspect.isclass(value):
            get_type_hints(value)  # annotations are looked up in the module that a class names


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_no_module_hides_a_public_name(stub: Path) -> None:
    listed = re.findall(r"^from ([\w.]+) import (\w+) as", stub.read_text(), re.MULTILINE)
    package = ".".join(stub.parent.relative_to(PROJECT / "src").parts)
    functions = {name for home, name in listed if home != package}
    modules = {module.stem for module in stub.parent.iterdir()}
    assert functions & modules == set()


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'sonde' has no attribute 'Runn'"):
        _ = sonde.Runn  # type: ignore[attr-defined]  # that is the point


def test_a_star_import_brings_what_dir_lists() -> None:
    assert vars(sonde)["__all__"] == dir(sonde)


def test_a_room_is_an_attribute_of_the_root_and_a_name_without_torch_loads_none() -> None:
    code = (
        "import sys, sonde; sonde.spikes.read_spikes, sonde.data.SkipList, sonde.train.Schedule;"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_says_what_it_is() -> None:
    assert [
        line
        for line in api_page.api_page().splitlines()
        if line.startswith("| `") and line.endswith("|  |")
    ] == []


def test_docs_and_examples_import_public_names_only() -> None:
    pages = [
        PROJECT / "README.md",
        *(PROJECT / "docs").rglob("*.md"),
        *(PROJECT / "examples").rglob("*.py"),
    ]
    deep = re.compile(r"^\s*(?:from|import) (sonde\.\w+\.[\w.]+)", re.MULTILINE)
    allowed = ("sonde.integrations.", "sonde.compat.")
    found = {
        f"{page.relative_to(PROJECT)}: {module}"
        for page in pages
        for module in deep.findall(page.read_text())
        if not module.startswith(allowed)
    }
    assert found == set()
