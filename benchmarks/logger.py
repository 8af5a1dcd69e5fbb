"""The logger beside its peers: ten floats a call.

    python benchmarks/logger.py               about three minutes; peers that are not installed are
                                              left out

Three tables. *In turns*: sonde, bare orjson + os.write of the same line, and DLLogger's method take
turns in one process; CPU time of the fastest turn. *Each alone*: every logger in a process of its
own, in a tight loop, then with a matrix product between calls (the median of what a call itself
took, which is what training waits for), then killed with SIGKILL right after its last call and read
back. *Reading*: one metric of a million records.

DLLogger is not on PyPI: its method (one `json.dumps` of a dict with three spellings of the time,
one buffered write of the line with its prefix) is stated again in `_DLLogger`, without and with a
flush per call.
"""

import datetime
import functools
import importlib.util
import json
import logging
import os
import random
import shutil
import signal
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import best_cpu_seconds, markdown_table

from sonde.log import JSONStreamBackend, Logger, StdOutBackend, Verbosity, read_series
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.run import Run

Log = Callable[[int, dict[str, float]], object]
Opened = tuple[Log, Callable[[], object]]
"""How to log, and how to close."""

_CHANCE: Final = random.Random(1)
_DATA: Final = {f"metric_{number}": _CHANCE.random() for number in range(10)}
"""Full-precision doubles, as losses are."""
_NUM_TURNS: Final = 15
_CALLS_PER_TURN: Final = 20_000


class _DLLogger:
    """NVIDIA's DLLogger 1.1, its Logger and JSONStreamBackend, as its source describes them, in our
    words.
    """

    def __init__(self, path: Path, *, flush: bool) -> None:
        self._file = path.open("w")
        self._start = datetime.datetime.now(datetime.timezone.utc).astimezone()
        self._flush = flush

    def log(self, step: int, data: dict[str, float], verbosity: int = 1) -> None:
        now = datetime.datetime.now(datetime.timezone.utc).astimezone()
        elapsed = (now - self._start).total_seconds()
        for backend_verbosity in (1,):
            if backend_verbosity >= verbosity:
                self._write(now, elapsed, step, data)

    def _write(
        self, now: datetime.datetime, elapsed: float, step: int, data: dict[str, float]
    ) -> None:
        line = {
            "timestamp": str(now.timestamp()),
            "datetime": str(now),
            "elapsedtime": str(elapsed),
            "type": "LOG",
        }
        self._file.write("DLLL {}\n".format(json.dumps({**line, "step": step, "data": data})))
        if self._flush:
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def _open_sonde(folder: Path) -> Opened:
    logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, folder / "log.jsonl")])
    return logger.log, logger.close


def _open_unsealed(folder: Path) -> Opened:
    backend = JSONStreamBackend(Verbosity.VERBOSE, folder / "log.jsonl")
    backend._append_line = functools.partial(backend._append_line, is_object=False)
    logger = Logger([backend])
    return logger.log, logger.close


def _open_sonde_and_screen(folder: Path) -> Opened:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for the rest of this child process
    logger = Logger(
        [
            StdOutBackend(Verbosity.DEFAULT),
            JSONStreamBackend(Verbosity.VERBOSE, folder / "log.jsonl"),
        ]
    )
    return logger.log, logger.close


def _open_bare(folder: Path) -> Opened:
    descriptor = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    write = os.write
    dumps = orjson.dumps
    now = time.time
    newline = orjson.OPT_APPEND_NEWLINE
    text = "2026-11-15 19:46:47.434305+00:00"

    def log(step: int, data: dict[str, float]) -> None:
        record = {
            "timestamp": now(),
            "elapsedtime": 0.123456,
            "datetime": text,
            "type": "LOG",
            "step": step,
            "rank": 0,
            "data": data,
        }
        write(descriptor, dumps(record, None, newline))

    return log, lambda: os.close(descriptor)


def _open_dllogger(folder: Path) -> Opened:
    logger = _DLLogger(folder / "log.jsonl", flush=False)
    return logger.log, logger.close


def _open_dllogger_flush(folder: Path) -> Opened:
    logger = _DLLogger(folder / "log.jsonl", flush=True)
    return logger.log, logger.close


def _open_stdlib(folder: Path) -> Opened:
    logger = logging.getLogger("bench")
    handler = logging.FileHandler(folder / "log.jsonl")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return (
        lambda step, data: logger.info("%s", json.dumps({"step": step, "data": data})),
        handler.close,
    )


def _open_tensorboard(folder: Path) -> Opened:
    from torch.utils.tensorboard import SummaryWriter

    return _scalar_by_scalar(SummaryWriter(str(folder)))


def _open_tensorboardx(folder: Path) -> Opened:
    from tensorboardX import SummaryWriter

    return _scalar_by_scalar(SummaryWriter(str(folder)))


def _scalar_by_scalar(writer: Any) -> Opened:
    def log(step: int, data: dict[str, float]) -> None:
        for name, value in data.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _open_wandb(folder: Path) -> Opened:
    os.environ |= {"WANDB_SILENT": "true", "WANDB_MODE": "offline"}
    import wandb

    run = wandb.init(project="bench", dir=str(folder), mode="offline")
    return lambda step, data: run.log(data, step=step), run.finish


def _open_mlflow(folder: Path) -> Opened:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri(f"file://{folder}")
    mlflow.set_experiment("bench")
    mlflow.start_run()
    return lambda step, data: mlflow.log_metrics(data, step=step), mlflow.end_run


def _open_trackio(folder: Path) -> Opened:
    os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    import contextlib

    import trackio

    with contextlib.redirect_stdout(sys.stderr):
        trackio.init(project="bench")
    return lambda step, data: trackio.log(data, step=step), trackio.finish


def _count_lines(folder: Path) -> float:
    lines = (folder / "log.jsonl").read_bytes().split(b"\n")
    return sum(line.endswith(b"}") for line in lines)


def _count_events(folder: Path) -> float:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"]) / len(_DATA)


def _count_wandb(folder: Path) -> float:
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    num = 0
    for payload in _leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        num += record.WhichOneof("record_type") == "history"
    return num


def _leveldb_records(content: bytes) -> Iterator[bytes]:
    """A .wandb file: a 7-byte head, then blocks of 32 KiB in the format of LevelDB's log."""
    position = 7
    parts = b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4) and position <= len(content):
            yield parts
            parts = b""


def _count_mlflow(folder: Path) -> float:
    return max(
        (len(path.read_bytes().splitlines()) for path in folder.glob("*/*/metrics/metric_9")),
        default=0,
    )


def _count_trackio(folder: Path) -> float:
    num = 0
    for path in folder.rglob("*.db"):
        with sqlite3.connect(path) as connection:
            num += connection.execute("SELECT count(*) FROM metrics").fetchone()[0]
    return num


# Name: how to open, how to count what a kill left, calls in the tight loop, the package that must
# be there.
_LOGGERS: Final[dict[str, tuple[Callable[[Path], Opened], Callable[[Path], float], int, str]]] = {
    "sonde JSON stream": (_open_sonde, _count_lines, 100_000, "sonde"),
    "sonde JSON stream without checksums": (_open_unsealed, _count_lines, 100_000, "sonde"),
    "sonde JSON stream + screen": (_open_sonde_and_screen, _count_lines, 50_000, "sonde"),
    "bare orjson + os.write": (_open_bare, _count_lines, 100_000, "orjson"),
    "DLLogger's method": (_open_dllogger, _count_lines, 50_000, "json"),
    "DLLogger's method + flush": (_open_dllogger_flush, _count_lines, 50_000, "json"),
    "logging + json": (_open_stdlib, _count_lines, 50_000, "logging"),
    "tensorboard (torch)": (_open_tensorboard, _count_events, 2_000, "tensorboard"),
    "tensorboardX": (_open_tensorboardx, _count_events, 2_000, "tensorboardX"),
    "wandb offline": (_open_wandb, _count_wandb, 2_000, "wandb"),
    "mlflow, files": (_open_mlflow, _count_mlflow, 300, "mlflow"),
    "trackio, local": (_open_trackio, _count_trackio, 2_000, "trackio"),
}

_SONDE: Final = ("sonde JSON stream", "sonde JSON stream without checksums")
_GATED: Final = ("tensorboard (torch)", "wandb offline")


def main() -> None:
    if len(sys.argv) > 1:
        _child(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
        return
    folder = Path(tempfile.mkdtemp(prefix="sonde-bench-"))
    try:
        _print_turns(folder)
        _print_alone(folder)
        _print_reading(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _print_turns(folder: Path) -> None:
    contenders: dict[str, Callable[[], object]] = {}
    for name in (*_SONDE, "bare orjson + os.write", "DLLogger's method + flush"):
        (folder / name).mkdir()
        log, _ = _LOGGERS[name][0](folder / name)

        def work(log: Log = log) -> None:
            for step in range(_CALLS_PER_TURN):
                log(step, _DATA)

        contenders[name] = work
    seconds = best_cpu_seconds(contenders, num_turns=_NUM_TURNS)
    micro = {name: spent / _CALLS_PER_TURN * 1e6 for name, spent in seconds.items()}
    ours, unsealed, bare, dllogger = micro.values()
    print("### In turns: CPU µs per call of ten floats\n")
    rows = [[name, f"{cost:.2f}"] for name, cost in micro.items()]
    print(markdown_table(["logger", "CPU µs"], rows))
    print(
        f"\nBare: {ours / bare:.2f}x of it (goal: at most 1.5x). {ours:.2f} µs (goal: at most 4)."
    )
    print(
        f"With checksums: {ours / unsealed:.2f}x of the same without (gate: at most 1.12x, goal:"
        " 1.08x)."
    )
    print(f"DLLogger with a flush: {dllogger / ours:.1f}x faster than it (gate: at least 4x).\n")


def _print_alone(folder: Path) -> None:
    rows = []
    medians = {}
    for name, (_, count, _, package) in _LOGGERS.items():
        if importlib.util.find_spec(package) is None:
            continue
        found = {}
        for mode in ("time", "kill"):
            place = folder / f"{name} {mode}".replace(",", "").replace("'", "")
            place.mkdir()
            done = subprocess.run(
                [sys.executable, __file__, name, mode, str(place)],
                capture_output=True,
                text=True,
                check=False,
            )
            if mode == "time":
                if done.returncode:
                    print(f"{name} failed: {done.stderr.strip().splitlines()[-1:]}\n")
                    break
                found = json.loads(done.stdout.splitlines()[-1])
            else:
                num = _kill_calls(name)
                found["lost"] = f"{num - count(place):g} of {num}"
        if "lost" not in found:
            continue
        medians[name] = found["median"]
        rows.append(
            [name, *(found[key] for key in ("median", "between", "cpu", "total", "bytes", "lost"))]
        )
    print("### Each alone: µs per call of ten floats\n")
    columns = [
        "logger",
        "call, median",
        "call with work between, median",
        "CPU of caller",
        "CPU of process with close",
    ]
    print(markdown_table([*columns, "bytes", "lost on SIGKILL"], rows))
    ours = medians["sonde JSON stream"]
    ratios = [
        f"{name} {seconds / ours:.0f}x" for name, seconds in medians.items() if name in _GATED
    ]
    print(f"\nFaster than: {', '.join(ratios)} (gate: at least 50x each, losing 0).\n")


def _kill_calls(name: str) -> int:
    return min(_LOGGERS[name][2], 5_000)


def _child(name: str, mode: str, folder: Path) -> None:
    """Measure one logger, or log and die, in this process."""
    out = sys.stdout
    make, _, num_calls, _ = _LOGGERS[name]
    log, close = make(folder)
    if mode == "kill":
        for step in range(_kill_calls(name)):
            log(step, _DATA)
        os.kill(os.getpid(), signal.SIGKILL)
    cpu = time.process_time()
    for step in range(num_calls):
        log(step, _DATA)
    tight = time.process_time() - cpu
    median = _median_call(log, num_calls, lambda: None)
    matrix = np.random.default_rng(1).normal(size=(200, 200))
    cpu_before_work = time.process_time()
    between = _median_call(log, 300, lambda: matrix @ matrix)
    cpu_of_work = time.process_time() - cpu_before_work
    close()
    total = time.process_time() - cpu - cpu_of_work
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    found = {
        "median": round(median * 1e6, 1),
        "between": round(between * 1e6, 1),
        "cpu": round(tight / num_calls * 1e6, 1),
        "total": round(total / (2 * num_calls) * 1e6, 1),
        "bytes": round(num_bytes / (2 * num_calls + 300)),
    }
    print(json.dumps(found), file=out, flush=True)


def _median_call(log: Log, num_calls: int, work: Callable[[], object]) -> float:
    """The median of the seconds that a call took, with `work` between calls."""
    seconds = []
    for step in range(num_calls):
        work()
        start = time.perf_counter()
        log(1_000_000 + step, _DATA)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _print_reading(folder: Path) -> None:
    with Run(folder / "run") as run:
        logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, run.records("log"))])
        for step in range(1_000_000):
            logger.log(step, {name: _CHANCE.random() for name in _DATA})
        logger.close()

    def read_one() -> None:
        assert len(read_series(folder / "run", "metric_3")) == 1_000_000

    cold = best_cpu_seconds({"cold": read_one}, num_turns=3)["cold"]
    with RunIndex(RunLayout(folder / "run")) as index:
        index.refresh()
    indexed = best_cpu_seconds({"indexed": read_one}, num_turns=5)["indexed"]
    print("### Reading one metric of a million records\n")
    rows = [
        ["from the file", f"{cold:.2f} s", "1.5 s"],
        ["once indexed", f"{indexed * 1000:.0f} ms", "50 ms"],
    ]
    print(markdown_table(["", "CPU", "gate"], rows))


if __name__ == "__main__":
    main()
