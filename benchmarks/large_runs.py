"""Runs far larger than usual: CPU seconds and peak memory of the verbs that read them.

python benchmarks/large_runs.py           about a minute; 1.5 GB in the temporary directory
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table

from sonde.records.layout import LOG, RunLayout
from sonde.records.manifest import FINISHED, Manifest, write_manifest
from sonde.records.seal import seal

_START: Final = 1_763_000_000.0
_HEAD: Final = (
    '{"timestamp":%.6f,"elapsedtime":%.6f,"datetime":"2026-11-15'
    ' 19:46:47.434305+00:00","type":"LOG","step":%d,"rank":0,"data":'
)


def main() -> None:
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(prefix="sonde-large-") as folder:
        for name, (make, verb, limit) in _CASES.items():
            root = Path(folder) / verb / str(len(rows))
            make(root)
            rows.append((name, *_measure(verb, root), limit))
            print(rows[-1], flush=True)
    print(markdown_table(["work", "CPU s", "peak MB", "asked"], rows))


def _measure(verb: str, root: Path) -> tuple[str, str]:
    """The CPU seconds and the peak megabytes of a verb in a process of its own."""
    code = (
        f"import sys; sys.argv[1:] = {[verb, str(root)]!r}; from sonde.cli.main import main; main()"
    )
    with open(os.devnull, "w") as nowhere:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=nowhere)
        _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    return f"{used.ru_utime + used.ru_stime:.1f}", f"{used.ru_maxrss / 1024:.0f}"


def _log_file(root: Path) -> Path:
    root.mkdir(parents=True)
    write_manifest(root, Manifest(run_id="large", created=_START, status=FINISHED))
    path = RunLayout(root).record_file(LOG, 0)
    path.parent.mkdir()
    return path


def _many_records(num_records: int, num_metrics: int) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        names = [f"metric_{number}" for number in range(num_metrics)]
        with _log_file(root).open("wb") as file:
            for step in range(num_records):
                data = json.dumps(
                    {name: 1 / (step + 7.5 + place) for place, name in enumerate(names)}
                )
                file.write(seal(f"{_HEAD % (_START + step, step, step)}{data}}}\n".encode()))

    return make


def _many_names(num_names: int) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        with _log_file(root).open("wb") as file:
            for step in range(num_names):
                file.write(
                    seal(f'{_HEAD % (_START + step, step, step)}{{"name_{step}":0.5}}}}\n'.encode())
                )

    return make


def _long_line(root: Path) -> None:
    with _log_file(root).open("wb") as file:
        file.write(b'{"type":"LOG","data":{"a":"')
        for _ in range(1024):
            file.write(b"x" * (1 << 20))
        file.write(b'"}}\n')


def _many_runs(root: Path) -> None:
    for number in range(10_000):
        run = root / f"run-{number}"
        with _log_file(run).open("wb") as file:
            for step in range(20):
                file.write(
                    seal(f'{_HEAD % (_START + step, step, step)}{{"loss":0.5}}}}\n'.encode())
                )


_CASES: Final[dict[str, tuple[Callable[[Path], None], str, str]]] = {
    "`sonde log`, 5 million records of one number": (
        _many_records(5_000_000, 1),
        "log",
        "10 s, 1000 MB",
    ),
    "`sonde log`, 1 million records of ten numbers": (_many_records(1_000_000, 10), "log", ""),
    "`sonde log`, 25,000 names": (_many_names(25_000), "log", ""),
    "`sonde log`, 100,000 names": (_many_names(100_000), "log", "20 s"),
    "`sonde show`, 100,000 names": (_many_names(100_000), "show", "20 s"),
    "`sonde log`, a line of 1 GB": (_long_line, "log", "200 MB"),
    "`sonde show`, a line of 1 GB": (_long_line, "show", "200 MB"),
    "`sonde runs`, 10,000 runs": (_many_runs, "runs", "2 s"),
}

if __name__ == "__main__":
    main()
