"""The probe beside msprobe (mindstudio-probe), torch.save, np.save and a read-only pass over the
same memory.

    python benchmarks/probe.py                 about three minutes; writes up to 256 MB at a time in
                                               the temporary directory

CPU time (user and system, so what a write costs is in it), best of several turns, one thread.
msprobe is a singleton that keeps its state, so every tool and mode runs in a process of its own,
one after the other, in the same run: the machine's mood is the same for both. The read-only pass is
the same in every process: XOR of all words, compiled with -O3.
"""

import ctypes
import functools
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import best_cpu_seconds, markdown_table

_SIZES: Final = {"1K": 1_000, "1M": 1 << 20, "64M": 64 << 20}
_TURNS: Final = {"1K": 300, "1M": 40, "64M": 5}
_NUM_RECORDS: Final = 5_000
_READ_ONLY: Final = """
#include <stdint.h>
uint64_t read_only(const uint64_t *words, int64_t num)
{
    uint64_t lanes[16] = {0}, all = 0;
    for (int64_t i = 0; i + 16 <= num; i += 16)
        for (int j = 0; j < 16; ++j)
            lanes[j] ^= words[i + j];
    for (int j = 0; j < 16; ++j)
        all ^= lanes[j];
    return all;
}
"""


def main() -> None:
    if len(sys.argv) == 4:
        print(json.dumps(_measure(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
        return
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as folder:
        ours = {}
        theirs = {}
        floors = _run("floor", "", folder)
        for mode in ("statistics", "md5", "tensor"):
            ours[mode] = _run("sonde", mode, folder)
            theirs[mode] = _run("msprobe", mode, folder)
        ours["xxh3"] = _run("sonde", "xxh3", folder)
        calls = _run("sonde", "calls", folder)
    _print_statistics(ours["statistics"], theirs["statistics"], floors)
    _print_hashes(ours, theirs)
    _print_tensors(ours["tensor"], theirs["tensor"], floors)
    _print_calls(calls)


def _print_statistics(
    ours: dict[str, float], theirs: dict[str, float], floors: dict[str, float]
) -> None:
    gates = {"1K": 3.0, "1M": 2.0, "64M": 3.0}
    rows = [
        [
            size,
            _ms(floors[size]),
            _ms(ours[f"save {size}"]),
            _ms(theirs[f"save {size}"]),
            _ms(ours[size]),
            _ms(theirs[size]),
            _verdict(theirs[size] / ours[size], gates[size]),
            f"{theirs[size] / floors[size]:.1f}x",
        ]
        for size in _SIZES
    ]
    print("### Statistics: CPU ms a value, of save() alone and with the value's share of step()\n")
    heads = [
        "float32",
        "read-only pass",
        "sonde, save()",
        "msprobe, save()",
        "sonde, both",
        "msprobe, both",
    ]
    print(markdown_table([*heads, "faster (gate)", "at best, one pass over memory"], rows), "\n")


def _print_hashes(ours: dict[str, dict[str, float]], theirs: dict[str, dict[str, float]]) -> None:
    rows = [
        [
            size,
            _ms(ours["md5"][size]),
            _ms(theirs["md5"][size]),
            _verdict(theirs["md5"][size] / ours["md5"][size], 1.5),
            _ms(ours["xxh3"][size]) if ours["xxh3"] else "xxhash not installed",
        ]
        for size in _SIZES
    ]
    print("### save() and step(), md5 mode (a CRC-32 beside the statistics): CPU ms\n")
    print(
        markdown_table(
            ["float32", "sonde", "msprobe", "faster (gate)", "sonde, xxh3 (128 bits)"], rows
        ),
        "\n",
    )


def _print_tensors(
    ours: dict[str, float], theirs: dict[str, float], floors: dict[str, float]
) -> None:
    rows = []
    for size in _SIZES:
        torch_ratio = ours[size] / floors[f"torch.save {size}"]
        numpy_ratio = ours[size] / floors[f"np.save {size}"]
        met = "" if torch_ratio <= 1.3 else " MISSED"
        rows.append(
            [
                size,
                _ms(ours[size]),
                _ms(theirs[size]),
                _ms(floors[f"torch.save {size}"]),
                f"{torch_ratio:.2f}x (≤ 1.3x{met})",
                _ms(floors[f"np.save {size}"]),
                f"{numpy_ratio:.2f}x (goal ≤ 1.3x)",
            ]
        )
    print("### save(), tensor mode (statistics and a .pt file): CPU ms\n")
    heads = [
        "float32",
        "sonde",
        "msprobe",
        "torch.save",
        "sonde / torch.save (gate)",
        "np.save",
        "sonde / np.save",
    ]
    print(markdown_table(heads, rows), "\n")


def _print_calls(calls: dict[str, float]) -> None:
    rows = [
        ["save(), step filtered out", f"{calls['filtered step'] * 1e6:.2f} µs", "< 1 µs"],
        ["save(), rank filtered out", f"{calls['filtered rank'] * 1e6:.2f} µs", "< 1 µs"],
        [f"step(), per record of {_NUM_RECORDS}", f"{calls['step'] * 1e6:.2f} µs", "< 10 µs"],
        ["step() with one record", f"{calls['short step'] * 1e6:.0f} µs", ""],
        [
            "forward and backward of a tiny model, without",
            f"{calls['plain training'] * 1e6:.0f} µs",
            "",
        ],
        [
            "the same, one value saved with its gradient",
            f"{calls['probed training'] * 1e6:.0f} µs",
            "",
        ],
    ]
    print("### The rest: CPU time\n")
    print(markdown_table(["what", "sonde", "gate"], rows))


def _best(work: Callable[[], object], num_turns: int) -> float:
    return best_cpu_seconds({"": work}, num_turns=num_turns)[""]


def _verdict(ratio: float, gate: float) -> str:
    return f"{ratio:.1f}x (≥ {gate:g}x{'' if ratio >= gate else ' MISSED'})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _run(tool: str, mode: str, folder: str) -> dict[str, float]:
    """One tool in one mode, in a process of its own."""
    command = [sys.executable, __file__, tool, mode, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {tool} {mode} failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def _measure(tool: str, mode: str, folder: Path) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if tool == "floor":
        return _measure_floors(folder)
    if mode == "calls":
        return _measure_calls(folder)
    debugger = _start(tool, mode, folder)
    if debugger is None:
        return {}
    if mode == "statistics":
        return {
            name: cost
            for size in _SIZES
            for name, cost in _measure_statistics(debugger, size).items()
        }
    return {size: _measure_saving(debugger, size, mode) for size in _SIZES}


def _start(tool: str, mode: str, folder: Path) -> Any:
    task = "tensor" if mode == "tensor" else "statistics"
    summary = mode if mode in ("md5", "xxh3") else "statistics"
    settings: dict[str, Any] = {
        "task": task,
        "dump_path": str(folder / f"{tool}-{mode}"),
        "rank": [],
        "step": [],
        "level": "debug",
    }
    settings[task] = {"summary_mode": summary}
    config = folder / f"{tool}-{mode}.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    if tool == "msprobe":
        return importlib.import_module("msprobe.pytorch").PrecisionDebugger(str(config))
    from sonde.errors import MissingDependency
    from sonde.probe import PrecisionDebugger

    try:
        return PrecisionDebugger(config)
    except MissingDependency:
        return None


def _measure_statistics(debugger: Any, size: str) -> dict[str, float]:
    """Many values, then the step that writes them: msprobe leaves more of its work to the step than
    we do.
    """
    tensor = torch.randn(_SIZES[size])
    num = _TURNS[size]
    best = {f"save {size}": float("inf"), size: float("inf")}
    for _ in range(5):
        start = time.process_time()
        for turn in range(num):
            debugger.save(tensor, f"x{turn % 4}", save_backward=False)
        saved = time.process_time()
        debugger.step()
        best[f"save {size}"] = min(best[f"save {size}"], (saved - start) / num)
        best[size] = min(best[size], (time.process_time() - start) / num)
    return best


def _measure_saving(debugger: Any, size: str, mode: str) -> float:
    """Only the save; but msprobe hashes later, in a thread: in md5 mode the step that waits for it
    is measured too.
    """
    tensor = torch.randn(_SIZES[size])
    with_step = mode in ("md5", "xxh3")
    best = float("inf")
    for turn in range(_TURNS[size]):

        def save(turn: int = turn) -> None:
            debugger.save(tensor, f"x{turn % 4}", save_backward=False)
            if with_step:
                debugger.step()

        # the first value of a step makes its folder; that is not what is asked here
        if mode == "tensor":
            debugger.save(torch.ones(1), "first", save_backward=False)
        best = min(best, _best(save, 1))
        if mode == "tensor":
            debugger.step()
            _empty(
                Path(
                    str(
                        debugger.settings.dump_path
                        if hasattr(debugger, "settings")
                        else debugger.config.dump_path
                    )
                )
            )
    return best


def _empty(folder: Path) -> None:
    """Full tensors are deleted between turns: 256 MB each."""
    for path in folder.rglob("*.pt"):
        path.unlink()


def _measure_floors(folder: Path) -> dict[str, float]:
    read_only = _build_read_only(folder)
    measured = {}
    for size, num in _SIZES.items():
        tensor = torch.randn(num)
        array = tensor.numpy()
        turns = _TURNS[size]
        measured[size] = _best(functools.partial(read_only, tensor.data_ptr(), num // 2), turns)
        path = folder / "floor.npy"
        measured[f"torch.save {size}"] = _best_new_file(
            functools.partial(torch.save, tensor, path), path, turns
        )
        measured[f"np.save {size}"] = _best_new_file(
            functools.partial(np.save, path, array), path, turns
        )
    return measured


def _best_new_file(save: Callable[[], object], path: Path, num_turns: int) -> float:
    """Into a new file each turn, as the probe does; deleting the old one is not measured on either
    side.
    """
    best = float("inf")
    for _ in range(num_turns):
        path.unlink(missing_ok=True)
        best = min(best, _best(save, 1))
    return best


def _build_read_only(folder: Path) -> Callable[[int, int], int]:
    library = folder / "read_only.so"
    command = ["cc", "-O3", "-march=native", "-fPIC", "-shared", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=_READ_ONLY, text=True, check=True)
    function = ctypes.CDLL(str(library)).read_only
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    function.restype = ctypes.c_uint64
    return function


def _measure_calls(folder: Path) -> dict[str, float]:
    from sonde.probe import PrecisionDebugger

    measured = {}
    tensor = torch.randn(1_000)
    save = PrecisionDebugger.save
    for name, key in (("filtered step", "step"), ("filtered rank", "rank")):
        chosen: dict[str, Any] = {key: [7]}
        debugger = PrecisionDebugger(dump_path=folder / "calls", **chosen)
        measured[name] = _best(lambda: [save(tensor, "x") for _ in range(1000)], 20) / 1000
        debugger.close()
    debugger = PrecisionDebugger(dump_path=folder / "calls")
    measured["step"] = float("inf")
    measured["short step"] = float("inf")
    for _ in range(5):
        for number in range(_NUM_RECORDS):
            save(tensor, f"layer{number % 50}", save_backward=False)
        # What was written on the way belongs to the step as well: records are flushed every 256.
        measured["step"] = min(measured["step"], _best(debugger.step, 1) / _NUM_RECORDS)
        save(tensor, "x", save_backward=False)
        measured["short step"] = min(measured["short step"], _best(debugger.step, 1))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    batch = torch.randn(4, 8)

    def train(*, is_probed: bool) -> None:
        hidden = model[0](batch)
        if is_probed:
            save(hidden, "hidden")
        model[2](model[1](hidden)).sum().backward()

    measured["plain training"] = _best(functools.partial(train, is_probed=False), 300)
    measured["probed training"] = _best(functools.partial(train, is_probed=True), 200)
    debugger.close()
    return measured


if __name__ == "__main__":
    main()
