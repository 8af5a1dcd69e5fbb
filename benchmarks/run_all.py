"""Runs the benchmarks, each in a process of its own, and writes what they print into RESULTS.md.

    python benchmarks/run_all.py                 every benchmark, about 25 minutes on two cores
    python benchmarks/run_all.py records log     these two; the other sections of RESULTS.md stay as
                                                 they are
    python benchmarks/run_all.py --studies       those that train for hours to find out how often a
                                                 verdict is right

A benchmark is a file in this folder with a `main()` that prints Markdown tables. One that fails
keeps its old section, is named at the end, and makes the exit code 1; the others run all the same.
"""

import ast
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent
_RESULTS: Final = _FOLDER / "RESULTS.md"
_SECTION: Final = re.compile(r"^## (\S+)\n", re.MULTILINE)
_PACKAGES: Final = ("torchsonde", "torch", "numpy")
_PEERS: Final = {
    name: name
    for name in (
        *(
            "accelerate",
            "ctranslate2",
            "datasets",
            "duckdb",
            "lightning",
            "orjson",
            "safetensors",
            "tensorboard",
        ),
        *("tensorboardX", "tokenizers", "torchmetrics", "trackio", "transformers", "wandb"),
    )
} | {"mlflow": "mlflow-skinny", "msprobe": "mindstudio-probe"}
"""Modules that a benchmark may set beside ours, and the packages they come from."""
_STUDIES: Final = {
    "audit": ["report"],
    "diagnosis": ["--half", "report"],
    "heal": ["--folder", "/tmp/sonde-heal"],
    "samples": [],
}
"""Not about speed: each takes a quarter of an hour to an hour. `make bench` leaves their sections
as they are.
"""


def main() -> None:
    benchmarks = find_benchmarks(_FOLDER)
    given = sys.argv[1:]
    names = (
        sorted(_STUDIES)
        if given == ["--studies"]
        else given or sorted(set(benchmarks) - set(_STUDIES))
    )
    unknown = sorted(set(names) - set(benchmarks))
    if unknown:
        sys.exit(
            f"error: no benchmark named {', '.join(unknown)}\nhint: there are"
            f" {', '.join(sorted(benchmarks))}"
        )
    failed = []
    for name in names:
        print(f"{name} …", flush=True)
        start = time.monotonic()
        command = [f"benchmarks/{name}.py", *_STUDIES.get(name, [])]
        done = subprocess.run(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            text=True,
            cwd=_FOLDER.parent,
            check=False,
        )
        print(done.stdout)
        if done.returncode:
            failed.append(name)
            continue
        before = _RESULTS.read_text(encoding="utf-8") if _RESULTS.exists() else ""
        took = f"`python {' '.join(command)}` took {time.monotonic() - start:.0f} s"
        section = f"{describe_machine(benchmarks[name])}. {took}.\n\n{done.stdout.strip()}\n"
        _RESULTS.write_text(with_section(before, name, section), encoding="utf-8")
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}")


def find_benchmarks(folder: Path) -> dict[str, Path]:
    """The files with a `main()`, by name, but for this one."""
    found = {}
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        has_main = any(
            isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body
        )
        if has_main and path.name != Path(__file__).name:
            found[path.stem] = path
    return found


def with_section(results: str, name: str, section: str) -> str:
    """`results` with the section `name` put in or replaced; sections are in order of their
    names.
    """
    _, *parts = _SECTION.split(results)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    sections[name] = section
    body = "\n".join(f"## {title}\n\n{text.strip()}\n" for title, text in sorted(sections.items()))
    return (
        "# Benchmarks\n\nWritten by `make bench`; each section is the output of"
        f" `benchmarks/<name>.py`.\n\n{body}"
    )


def describe_machine(benchmark: Path) -> str:
    """Date, processor, memory, load and versions of all that it runs: what a number means nothing
    without.
    """
    versions = [f"Python {platform.python_version()}"]
    source = benchmark.read_text(encoding="utf-8")
    peers = [package for module, package in _PEERS.items() if re.search(rf"\b{module}\b", source)]
    for package in (*_PACKAGES, *peers):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    now = datetime.datetime.now(datetime.timezone.utc)
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{now:%Y-%m-%d %H:%M} UTC, {_processor()} with {os.cpu_count()} cores{_memory()}{load};"
        f" {', '.join(versions)}"
    )


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _memory() -> str:
    found = re.search(r"^MemTotal:\s+(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE)
    return f", {int(found[1]) / 2**20:.0f} GB" if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
