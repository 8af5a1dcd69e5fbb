"""The built wheel, installed bare (no extras) in an environment of its own: runs can be read there,
without torch.

Dependencies come from the registry, under constraints.txt: that the bare list suffices is the
point. About 20 s of CPU.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sonde.run import Run
from sonde.version import __version__

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def command(*arguments: str | Path, cwd: Path) -> Outcome:
    """Run a command that must not see this checkout: neither by its path nor by its working
    directory.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env={**env, "NO_COLOR": "1", "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def must(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@cache
def interpreter(version: str) -> Path | None:
    """A Python of this version: the one that runs us, one on the PATH, or one of pyenv's."""
    if version == RUNNING:
        return Path(sys.executable)
    places = [
        shutil.which(f"python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    ]
    for place in places:
        if place is None:
            continue
        asked = subprocess.run(
            [str(place), "-c", "import sys; print(sys.version)"], capture_output=True, text=True
        )
        # a pyenv shim may be there and not work
        if asked.returncode == 0 and asked.stdout.startswith(version + "."):
            return Path(place)
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make dist` makes of a copy, with our environment taken as installed (-o): nothing is
    left in our checkout.
    """
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(PROJECT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy2(PROJECT / name, source / name)
    (source / "tools").mkdir()
    shutil.copy2(PROJECT / "tools" / "package_metadata.py", source / "tools")
    must(command("make", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.dev", "dist", cwd=source))
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run, written here, to be read there."""
    root = tmp_path_factory.mktemp("runs") / "first"
    with Run(root, config={"width": 8}, seeds={"torch": 7}) as run:
        for step, loss in enumerate([2.5, float("nan"), 1.5]):
            run.records("log").append({"type": "LOG", "step": step, "data": {"loss": loss}})
    return root


def bare_environment(python: Path, wheel: Path, root: Path) -> Path:
    """A fresh environment with the wheel and what it asks for; returns its folder of commands."""
    must(command(python, "-m", "venv", root, cwd=root.parent))
    commands = root / "bin"
    pip = (commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    must(command(*pip, "--constraint", PROJECT / "constraints.txt", wheel, cwd=root.parent))
    return commands


def check_reading(commands: Path, run_directory: Path) -> None:
    """`sonde --version`, `runs` and `show` work, on a machine where torch is not to be had."""
    away = run_directory.parent
    assert command(commands / "python", "-c", "import torch", cwd=away).code != 0
    assert command(commands / "python", "-c", "import sonde; sonde.Run", cwd=away).code == 0
    assert must(command(commands / "sonde", "--version", cwd=away)).strip() == __version__
    (listed,) = json.loads(must(command(commands / "sonde", "runs", away, "--json", cwd=away)))
    assert (listed["status"], listed["last_step"]) == ("finished", 2)
    shown: dict[str, Any] = json.loads(
        must(command(commands / "sonde", "show", run_directory, "--json", cwd=away))
    )
    assert shown["manifest"]["seeds"] == {"torch": 7}
    assert {file["kind"] for file in shown["files"]} == {"events", "log"}
    told = json.loads(must(command(commands / "sonde", "why", run_directory, "--json", cwd=away)))
    assert told["runs"][0]["findings"][0]["kind"] == "nonfinite"
    assert "first" in must(command(commands / "sonde", "runs", away, cwd=away))
    shown_all = must(command(commands / "sonde", "show", run_directory, "--all", cwd=away))
    assert ["width", "8"] in [line.split() for line in shown_all.splitlines()]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = must(
        command(sys.executable, "-m", "zipfile", "--list", wheel, cwd=wheel.parent)
    ).splitlines()[1:]
    tops = {name.split("/")[0] for name in names}
    assert tops == {"sonde", f"torchsonde-{__version__}.dist-info"}
    assert any(name.startswith("sonde/SKILL.md ") for name in names)  # for agents
    assert any(name.startswith("sonde/py.typed") for name in names)


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The commands of a bare environment of the Python that runs us."""
    root = tmp_path_factory.mktemp("bare") / "venv"
    yield bare_environment(Path(sys.executable), wheel, root)
    shutil.rmtree(root)


def test_a_bare_install_reads_runs_without_torch(commands: Path, run_directory: Path) -> None:
    check_reading(commands, run_directory)


def test_a_verb_that_needs_torch_says_what_to_install(commands: Path, tmp_path: Path) -> None:
    outcome = command(commands / "sonde", "demo", cwd=tmp_path)
    assert outcome.code == 1
    assert outcome.stderr.startswith("error:")
    assert "hint: pip install 'torchsonde[train]'" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
@pytest.mark.parametrize("version", [version for version in VERSIONS if version != RUNNING])
def test_a_bare_install_reads_runs_on_each_supported_python(
    version: str, wheel: Path, run_directory: Path, tmp_path: Path
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    check_reading(bare_environment(python, wheel, tmp_path / "venv"), run_directory)


@pytest.mark.soak
@pytest.mark.parametrize(
    "start",
    [
        ("uvx", "--constraints", str(PROJECT / "constraints.txt"), "--from"),
        ("pipx", "run", f"--pip-args=--constraint={PROJECT / 'constraints.txt'}", "--spec"),
    ],
    ids=lambda start: start[0],
)
def test_a_runner_of_tools_shows_the_demo_from_the_wheel(
    start: tuple[str, ...], wheel: Path, tmp_path: Path
) -> None:
    if shutil.which(start[0]) is None:
        pytest.skip(f"there is no {start[0]} on this machine")
    shown = must(
        command(
            *start, f"{wheel}[train]", "sonde", "demo", "--out", tmp_path / "demo", cwd=tmp_path
        )
    )
    assert "named correctly" in shown


@pytest.mark.soak
def test_the_constraints_pin_everything_that_a_contributor_installs(tmp_path: Path) -> None:
    """What `pip install '.[train,dev]'` would bring is all named in constraints.txt, at that
    version.
    """
    report = tmp_path / "report.json"
    must(command(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path))
    pip = (
        tmp_path / "venv" / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    )
    constraint = ("--constraint", PROJECT / "constraints.txt")
    must(
        command(
            *pip,
            "--dry-run",
            "--report",
            report,
            *constraint,
            f"{PROJECT}[train,dev]",
            cwd=tmp_path,
        )
    )
    installed = {
        _plain(package["metadata"]["name"]) for package in json.loads(report.read_text())["install"]
    }
    pins = [line for line in (PROJECT / "constraints.txt").read_text().splitlines() if "==" in line]
    # torch's own CUDA parts come or not, by machine; torch states their versions.
    unpinned = {name for name in installed if not name.startswith(("nvidia-", "cuda-", "triton"))}
    unpinned -= {_plain(line.split("==")[0]) for line in pins}
    assert "torch" in installed
    assert unpinned == {"torchsonde"}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
