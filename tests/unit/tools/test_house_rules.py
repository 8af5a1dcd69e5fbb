"""tools/house_rules.py: each rule catches its own violation, and lets the nearest innocent thing
pass.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "house_rules.py"

PYPROJECT = """\
[tool.house-rules]
max_file_lines = 30
max_function_lines = 5
max_class_lines = 10
max_arguments = 3

[tool.house-rules.exceptions]
"""


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_rules", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house_rules"] = module
    spec.loader.exec_module(module)
    return module


house_rules = load_script()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    package = tmp_path / "src" / "box"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Box."""\n')
    return tmp_path


def run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, list[str]]:
    monkeypatch.setattr(sys, "argv", ["house_rules.py", str(project)])
    code: int = house_rules.main()
    return code, capsys.readouterr().out.splitlines()


def findings_in(project: Path, source: str, *, path: str = "src/box/lid.py") -> list[str]:
    """What the rules say about one file more in the project."""
    file = project / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('"""Lid."""\n' + source)
    limits, exceptions = house_rules.load_rules(project)
    files, findings = house_rules.parse_files(project)
    findings += house_rules.check(files, limits)
    return [
        f"{finding.path}:{finding.line}: {finding.text}"
        for finding in house_rules.excuse(findings, exceptions)
    ]


def test_a_clean_project_gets_one_summary_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(project, monkeypatch, capsys)
    assert code == 0
    assert lines == [
        (
            "house rules: 1 files, 1 lines, 0 of them code in src; largest file src/box/__init__.py"
            " (1), longest function none (0)"
        )
    ]


def test_a_finding_is_printed_with_file_and_line_and_fails_the_check(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "src" / "box" / "lid.py").write_text(
        '"""Lid."""\n\n\ndef shut():\n' + "    x = 1\n" * 5
    )
    code, lines = run(project, monkeypatch, capsys)
    assert code == 1
    assert lines == ["src/box/lid.py:4: function shut has 6 lines, the limit is 5"]


DATACLASS = "from dataclasses import dataclass\n"

CAUGHT = {
    "a long file": ("x = 1\n" * 30, "src/box/lid.py:31: the file has 31 lines, the limit is 30"),
    "a long function": (
        "def f():\n" + "    x = 1\n" * 5,
        "src/box/lid.py:2: function f has 6 lines, the limit is 5",
    ),
    "a long async function": (
        "async def f():\n" + "    x = 1\n" * 5,
        "src/box/lid.py:2: function f has 6 lines, the limit is 5",
    ),
    "a long method of a class inside an if": (
        "if True:\n    class C:\n        def m(self):\n" + "            x = 1\n" * 5,
        "src/box/lid.py:4: function C.m has 6 lines, the limit is 5",
    ),
    "a long class": (
        "class C:\n" + "    x = 1\n" * 10,
        "src/box/lid.py:2: class C has 11 lines, the limit is 10",
    ),
    "four arguments": (
        "def f(a, /, b, *, c, d): ...\n",
        "src/box/lid.py:2: function f has 4 arguments, the limit is 3",
    ),
    "four arguments of a static method": (
        "class C:\n    @staticmethod\n    def f(a, b, c, d): ...\n",
        "src/box/lid.py:4: function C.f has 4 arguments, the limit is 3",
    ),
    "a concrete class with a subclass": (
        "class C: ...\nclass D(C): ...\n",
        "src/box/lid.py:2: class C has subclasses and is not abstract (its own bases say: ABC)",
    ),
    "a concrete class with a subclass, by its module": (
        "class D(lid.C): ...\nclass C: ...\n",
        "src/box/lid.py:3: class C has subclasses and is not abstract (its own bases say: ABC)",
    ),
    "thawed settings": (
        DATACLASS + "@dataclass(kw_only=True)\nclass LidSettings: ...\n",
        "src/box/lid.py:4: settings LidSettings are not frozen=True",
    ),
    "positional settings": (
        DATACLASS + "@dataclass(frozen=True)\nclass LidSettings: ...\n",
        "src/box/lid.py:4: settings LidSettings are not kw_only=True",
    ),
    "unexplained settings": (
        DATACLASS
        + "@dataclass(frozen=True, kw_only=True)\nclass LidSettings:\n    width: int = 1\n",
        "src/box/lid.py:5: field width of settings LidSettings has no docstring below it",
    ),
    "the root": (
        "import box\n",
        "src/box/lid.py:2: imports the root of box: import from the module that defines it",
    ),
    "a name of the root, inside a function": (
        "def f():\n    from box import Box\n",
        "src/box/lid.py:3: imports the root of box: import from the module that defines it",
    ),
    "torch.load": (
        "import torch\ntorch.load('x')\n",
        "src/box/lid.py:3: torch.load without weights_only=True runs code from the file",
    ),
    "torch.load with weights_only=False": (
        "import torch\ntorch.load('x', weights_only=False)\n",
        "src/box/lid.py:3: torch.load without weights_only=True runs code from the file",
    ),
    "torch.load under another name": (
        "from torch import load as unpack\nunpack('x')\n",
        "src/box/lid.py:3: torch.load without weights_only=True runs code from the file",
    ),
    "torch under another name": (
        "import torch as t\nt.load('x')\n",
        "src/box/lid.py:3: torch.load without weights_only=True runs code from the file",
    ),
    "allow_pickle": (
        "import numpy\nnumpy.load('x', allow_pickle=True)\n",
        "src/box/lid.py:3: allow_pickle=True runs code from the file",
    ),
    "a syntax error": ("def f(:\n", "src/box/lid.py:2: does not parse: invalid syntax"),
}


@pytest.mark.parametrize("what", CAUGHT)
def test_catches(project: Path, what: str) -> None:
    source, expected = CAUGHT[what]
    assert findings_in(project, source) == [expected]


INNOCENT = {
    "a file, function and class at their limits": (
        "class C:\n    def f(self, a, b, c):\n" + "        x = 1\n" * 4 + "    y = 1\n" * 4
    ),
    "variadic arguments": "def f(a, b, c, *args, **kwargs): ...\n",
    "a class without subclasses": "class C: ...\n",
    "a subclass of somebody else's class": "import torch\nclass C(torch.nn.Module): ...\n",
    "a subclass of somebody else's class of a name of ours": (
        "class C: ...\ndef f():\n    from torch import C\n    class D(C): ...\n"
    ),
    "an abstract base": "from abc import ABC\nclass C(ABC): ...\nclass D(C): ...\n",
    "a generic protocol": (
        "from typing import Protocol, TypeVar\nT = TypeVar('T')\nclass C(Protocol[T]): ...\nclass"
        " D(C[int]): ...\n"
    ),
    "an abstract method": (
        "import abc\nclass C:\n    @abc.abstractmethod\n    def f(self): ...\nclass D(C): ...\n"
    ),
    "an abstract metaclass": "import abc\nclass C(metaclass=abc.ABCMeta): ...\nclass D(C): ...\n",
    "an enumeration": "from enum import Enum\nclass C(Enum):\n    A = 1\n",
    "a named tuple and a typed dict": (
        "import typing\nclass C(typing.NamedTuple): ...\nclass D(typing.TypedDict): ...\n"
    ),
    "typed dicts of typed dicts": (
        "from typing import TypedDict\nclass D(TypedDict): ...\nclass E(D, total=False): ...\n"
    ),
    "exceptions of exceptions": "class Deeper(Deep): ...\nclass Deep(ValueError): ...\n",
    "good settings": (
        DATACLASS + "@dataclass(frozen=True, kw_only=True)\n"
        "class LidSettings:\n    'Of a lid.'\n    width: int = 1\n    'In millimetres.'\n"
    ),
    "a submodule": "from box import lid\nfrom box.lid import shut\nimport boxes\n",
    "safe loading": (
        "import torch, numpy, json\ntorch.load('x',"
        " weights_only=True)\njson.load('x')\nnumpy.load('x')\n"
    ),
}


@pytest.mark.parametrize("what", INNOCENT)
def test_lets_pass(project: Path, what: str) -> None:
    assert findings_in(project, INNOCENT[what]) == []


@pytest.mark.parametrize(
    "path", ["src/box/utils.py", "src/box/core/lid.py", "tests/_helpers.py", "tools/misc.py"]
)
def test_names_that_say_nothing_are_caught_in_files_and_folders(project: Path, path: str) -> None:
    findings = findings_in(project, "", path=path)
    assert len(findings) == 1
    assert "says nothing" in findings[0]


def test_a_folder_with_an_empty_name_is_reported_once(project: Path) -> None:
    findings_in(project, "", path="src/box/common/hinge.py")
    assert len(findings_in(project, "", path="src/box/common/lid.py")) == 1


def test_tests_and_tools_may_have_open_classes_and_import_the_root(project: Path) -> None:
    assert findings_in(project, "import box\nclass C: ...\n", path="tests/test_lid.py") == []


def test_sizes_hold_for_tests_too(project: Path) -> None:
    assert len(findings_in(project, "x = 1\n" * 30, path="tests/test_lid.py")) == 1


def test_a_module_of_the_package_without_docstring_is_caught(project: Path) -> None:
    (project / "src" / "box" / "bare.py").write_text("x = 1\n")
    assert findings_in(project, "") == ["src/box/bare.py:1: the module has no docstring"]


def excused(project: Path, line: str, source: str) -> list[str]:
    (project / "pyproject.toml").write_text(PYPROJECT + line)
    return findings_in(project, source)


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 5


def test_an_exception_with_a_reason_excuses_its_object(project: Path) -> None:
    assert excused(project, '"src/box/lid.py:f" = "a table of cases"\n', LONG_FUNCTION) == []


def test_an_exception_for_the_file_does_not_excuse_its_functions(project: Path) -> None:
    findings = excused(project, '"src/box/lid.py" = "a table of cases"\n', LONG_FUNCTION)
    assert findings == [
        "src/box/lid.py:2: function f has 6 lines, the limit is 5",
        "pyproject.toml:1: house-rules exception 'src/box/lid.py' is not needed: remove it",
    ]


def test_an_exception_without_a_reason_is_a_finding(project: Path) -> None:
    findings = excused(project, '"src/box/lid.py:f" = " "\n', LONG_FUNCTION)
    assert findings == ["pyproject.toml:1: house-rules exception 'src/box/lid.py:f' has no reason"]


def test_an_exception_that_is_no_longer_needed_is_a_finding(project: Path) -> None:
    findings = excused(project, '"src/box/lid.py:f" = "was long once"\n', "")
    assert findings == [
        "pyproject.toml:1: house-rules exception 'src/box/lid.py:f' is not needed: remove it"
    ]


def test_a_misspelled_limit_is_refused(project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace("max_arguments", "max_argument"))
    with pytest.raises(TypeError, match="max_argument"):
        house_rules.load_rules(project)
