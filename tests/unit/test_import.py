"""`import sonde` is light: no torch, no dependency at all, and next to no time."""

import json
import subprocess
import sys
from typing import Final

HEAVY: Final = (
    "torch",
    "numpy",
    "rich",
    "cyclopts",
    "msgspec",
    "orjson",
    "tokenizers",
    "safetensors",
    "sqlite3",
)
MAX_MILLISECONDS: Final = 100

MEASURE: Final = """
import json, sys, time
before = set(sys.modules)
started = time.perf_counter()
import sonde
spent = time.perf_counter() - started
print(json.dumps({"modules": sorted(set(sys.modules) - before), "milliseconds": spent * 1000}))
"""


def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_import_loads_none_of_the_dependencies() -> None:
    loaded = json.loads(in_a_fresh_interpreter(MEASURE))["modules"]
    assert "sonde" in loaded
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []


def test_import_takes_under_100_milliseconds() -> None:
    # Measured inside, so that the start of the interpreter itself is not in it; the best of five,
    # since others run too.
    spent = min(json.loads(in_a_fresh_interpreter(MEASURE))["milliseconds"] for _ in range(5))
    assert spent < MAX_MILLISECONDS


def test_what_only_reads_loads_no_torch_when_it_is_used() -> None:
    code = (
        "import sys, sonde, sonde.cli.main, sonde.cli.runs, sonde.cli.show; sonde.Run;"
        " print('torch' in sys.modules)"
    )
    assert in_a_fresh_interpreter(code).strip() == "False"
