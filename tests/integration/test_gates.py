"""Every gate of the Makefile catches the one thing it is there for, in a scratch copy of the
project.

Each case plants a single violation in a clean copy and runs the `make` target that must catch it,
with the tools of the environment that runs the tests. About 20 s of CPU.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
GATES = ("format", "lint", "types", "layers", "budget", "fast")
CLEAN_TEST = '"""Clean."""\n\n\ndef test_clean() -> None:\n    assert len("clean") == 5\n'


class Plant(NamedTuple):
    """A violation: the files that make it, the gate that must fail and what its output must say."""

    gate: str
    files: dict[str, str]
    says: tuple[str, ...]


def module(body: str) -> str:
    return f'"""Planted."""\n\n{body}'


def lines(num: int) -> str:
    return "".join(f"    x{i} = {i}\n" for i in range(num))


def function(body: str) -> str:
    return module(f'\ndef planted() -> None:\n    """Planted."""\n{body}')


PLANTS = {
    "unformatted code": Plant(
        "format",
        {"src/sonde/records/planted.py": module("x = {  'a':1 }\n")},
        ("would be reformatted", "planted.py"),
    ),
    "print in a library module": Plant(
        "lint",
        {"src/sonde/records/planted.py": function('    print("hello")\n')},
        ("T201", "planted.py"),
    ),
    "a blanket except": Plant(
        "lint",
        {
            "src/sonde/records/planted.py": function(
                "    try:\n        x = 1\n    except Exception:\n        x = 2\n"
            )
        },
        ("BLE001", "planted.py"),
    ),
    "a bare except": Plant(
        "lint",
        {
            "src/sonde/records/planted.py": function(
                "    try:\n        x = 1\n    except:\n        x = 2\n"
            )
        },
        ("E722", "planted.py"),
    ),
    "import pickle": Plant(
        "lint",
        {"src/sonde/records/planted.py": module("import pickle\n\nLOADS = pickle.loads\n")},
        ("TID251", "Never unpickle", "planted.py"),
    ),
    "yaml.load": Plant(
        "lint",
        {
            "src/sonde/records/planted.py": module(
                "import yaml\n\nDATA = yaml.load('a: 1', Loader=yaml.Loader)\n"
            )
        },
        ("TID251", "S506", "planted.py"),
    ),
    "pickle in a test": Plant(
        "lint",
        {"tests/unit/test_planted.py": module("import pickle\n\nLOADS = pickle.loads\n")},
        ("TID251",),
    ),
    "torch.load without weights_only": Plant(
        "budget",
        {"src/sonde/demo/planted.py": module("import torch\n\nSTATE = torch.load('x.pt')\n")},
        ("src/sonde/demo/planted.py:5: torch.load without weights_only=True",),
    ),
    "a type error": Plant(
        "types",
        {"src/sonde/records/planted.py": module('NUM_FILES: int = "three"\n')},
        ("src/sonde/records/planted.py:3: error: Incompatible types", "[assignment]"),
    ),
    "a name that the oldest Python lacks": Plant(
        "types",
        {"src/sonde/records/planted.py": module("from enum import StrEnum\n\nKIND = StrEnum\n")},
        ('src/sonde/records/planted.py:3: error: Module "enum" has no attribute "StrEnum"',),
    ),
    "an untyped test": Plant(
        "types",
        {"tests/unit/test_planted.py": module("\ndef test_untyped():\n    assert True\n")},
        (
            "tests/unit/test_planted.py:4: error: Function is missing a return type",
            "[no-untyped-def]",
        ),
    ),
    "an upward import": Plant(
        "layers",
        {"src/sonde/records/planted.py": module("import sonde.run\n\nRUN = sonde.run.Run\n")},
        ("An import only goes down BROKEN", "sonde.records is not allowed to import sonde.run"),
    ),
    "an upward import inside a function": Plant(
        "layers",
        {
            "src/sonde/records/planted.py": function(
                "    from sonde.cli.main import main\n\n    main()\n"
            )
        },
        ("An import only goes down BROKEN", "sonde.records is not allowed to import sonde.cli"),
    ),
    "a package that is not on the map": Plant(
        "layers",
        {"src/sonde/attic/__init__.py": module(""), "src/sonde/attic/trunk.py": module("")},
        ("An import only goes down BROKEN", "attic"),
    ),
    "a cycle between siblings": Plant(
        "layers",
        {
            "src/sonde/records/hen.py": module(
                "import sonde.records.egg\n\nEGG = sonde.records.egg\n"
            ),
            "src/sonde/records/egg.py": module(
                "def lay() -> None:\n    import sonde.records.hen\n"
            ),
        },
        ("No cycles between siblings, at any depth BROKEN", ".hen"),
    ),
    "torch in a module that only reads": Plant(
        "layers",
        {"src/sonde/records/planted.py": module("import torch\n\nTENSOR = torch.Tensor\n")},
        ("What only reads needs no torch BROKEN", "sonde.records.planted -> torch"),
    ),
    "torch behind a module that only reads": Plant(
        "layers",
        {
            # `metrics` is not in the list of readers and may import torch; a reader that imports it
            # may not.
            "src/sonde/metrics/__init__.py": module(""),
            "src/sonde/metrics/planted.py": module("import torch\n\nTENSOR = torch.Tensor\n"),
            "src/sonde/cli/show.py": "from sonde.metrics.planted import TENSOR\n",
        },
        (
            "What only reads needs no torch BROKEN",
            "sonde.cli.show -> sonde.metrics.planted",
            "-> torch",
        ),
    ),
    "a long file": Plant(
        "budget",
        {"src/sonde/records/planted.py": module("X = 1\n" * 499)},
        ("src/sonde/records/planted.py:501: the file has 501 lines, the limit is 500",),
    ),
    "a long function": Plant(
        "budget",
        {"src/sonde/records/planted.py": function(lines(79))},
        ("src/sonde/records/planted.py:4: function planted has 81 lines, the limit is 80",),
    ),
    "a long class": Plant(
        "budget",
        {"tests/unit/test_planted.py": module("\nclass Planted:\n" + lines(300))},
        ("tests/unit/test_planted.py:4: class Planted has 301 lines, the limit is 300",),
    ),
    "a long list of arguments": Plant(
        "budget",
        {"src/sonde/records/planted.py": module("\ndef f(a, b, c, d, e, f, g, h): ...\n")},
        ("src/sonde/records/planted.py:4: function f has 8 arguments, the limit is 7",),
    ),
    "a subclass of a concrete class": Plant(
        "budget",
        {
            "src/sonde/records/planted.py": module(
                "\nclass Open:\n    x = 1\n\nclass Closed(Open):\n    x = 2\n"
            )
        },
        ("src/sonde/records/planted.py:4: class Open has subclasses and is not abstract",),
    ),
    "a module called utils": Plant(
        "budget",
        {"src/sonde/records/utils.py": module("")},
        ("src/sonde/records/utils.py:1: 'utils' says nothing",),
    ),
    "the root imported inside the package": Plant(
        "budget",
        {"src/sonde/records/planted.py": module("from sonde import Run\n")},
        ("src/sonde/records/planted.py:3: imports the root of sonde",),
    ),
    "a warning in a test": Plant(
        "fast",
        {
            "tests/unit/test_planted.py": module(
                "import warnings\n\n\ndef test_warns() -> None:\n    warnings.warn('planted',"
                " stacklevel=1)\n    assert True\n"
            )
        },
        ("UserWarning: planted", "1 failed"),
    ),
    "a long test without a mark": Plant(
        "fast",
        {
            "tests/unit/test_planted.py": module(
                "import time\n\n\ndef test_burns() -> None:\n    end = time.process_time() + 6.2\n"
                "    while time.process_time() < end:\n        assert end\n"
            )
        },
        ("mark it slow", "1 error"),
    ),
    "a marker nobody declared": Plant(
        "fast",
        {
            "tests/unit/test_planted.py": module(
                "import pytest\n\n\n@pytest.mark.sluggish\ndef test_x() -> None:\n    assert True\n"
            )
        },
        ("'sluggish' not found in `markers`",),
    ),
}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The package, its tools and settings, one innocent test and one innocent benchmark."""
    root = tmp_path / "project"
    skip = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "tools"):
        shutil.copytree(PROJECT / folder, root / folder, ignore=skip)
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy2(PROJECT / name, root / name)
    for path in ("tests/unit/test_clean.py", "benchmarks/clean.py"):
        (root / path).parent.mkdir(parents=True)
        (root / path).write_text(CLEAN_TEST)
    shutil.copy2(PROJECT / "tests" / "conftest.py", root / "tests" / "conftest.py")
    return root


def run_gate(scratch: Path, gate: str) -> tuple[int, str]:
    """Run one target of the Makefile in the copy, with our environment taken as installed (-o)."""
    if gate == "types" and (PROJECT / ".mypy_cache").is_dir():
        # What mypy knows of torch and numpy costs a minute to find out anew. A copy: theirs must
        # not learn of the plant.
        shutil.copytree(PROJECT / ".mypy_cache", scratch / ".mypy_cache")
    venv = sys.prefix
    done = subprocess.run(
        ["make", f"VENV={venv}", "-o", f"{venv}/.dev", "-o", f"{venv}/.train", gate],
        cwd=scratch,
        env={
            **os.environ,
            "PYTHONPATH": str(scratch / "src"),
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "MAKEFLAGS": "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )
    return done.returncode, done.stdout


def test_a_copy_without_a_plant_passes_all_gates(scratch: Path) -> None:
    results = {gate: run_gate(scratch, gate) for gate in GATES}
    assert {gate: output for gate, (code, output) in results.items() if code != 0} == {}


@pytest.mark.parametrize("what", PLANTS)
def test_the_gate_catches(scratch: Path, what: str) -> None:
    plant = PLANTS[what]
    for path, text in plant.files.items():
        file = scratch / path
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text() if file.exists() else ""
        file.write_text(before + text)
    code, output = run_gate(scratch, plant.gate)
    assert code != 0, output
    for words in plant.says:
        assert words in output


def test_every_gate_has_a_plant() -> None:
    assert {plant.gate for plant in PLANTS.values()} == set(GATES)
