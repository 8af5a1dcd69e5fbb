"""The run directory: appending records, indexing them, and opening one series, each beside its
peer.

    python benchmarks/records.py              a minute or two; the million-record file is 0.45 GB in
                                              the temporary directory
    python benchmarks/records.py --ten        also indexes ten million records (3 GB), a few minutes
                                              more

Appending is CPU time (user and system), best of several turns. Indexing runs in a process of its
own, so that its peak memory can be told. Opening a series includes opening the index; DuckDB is
given the same file, one metric, and no schema to find out.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import Cost, best_cpu_seconds, in_child, markdown_table

from sonde.records.append import RecordFile
from sonde.records.index import RunIndex
from sonde.records.layout import LOG, RunLayout
from sonde.records.values import encode

_METRICS: Final = [
    *("loss", "grad_norm", "lr", "tokens_per_second", "step_seconds"),
    *("memory_gb", "loss_scale", "accuracy", "perplexity", "entropy"),
]
_NUM_APPENDED: Final = 20_000
_NUM_TURNS: Final = 11
_NUM_OPENINGS: Final = 7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ten", action="store_true", help="also index ten million records")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="sonde-bench-"))
    try:
        _print_appending(directory)
        _print_indexing(directory, 1_000_000, _METRICS, is_compared=True)
        if arguments.ten:
            _print_indexing(directory, 10_000_000, _METRICS[:3], is_compared=False)
    finally:
        shutil.rmtree(directory)


def _print_appending(directory: Path) -> None:
    generator = random.Random(1)
    records = [{name: generator.random() for name in _METRICS} for _ in range(_NUM_APPENDED)]

    def append_ours() -> None:
        with RecordFile(directory / "ours.jsonl") as file:
            for record in records:
                file.append(record)

    def append_unsealed() -> None:
        with RecordFile(directory / "unsealed.jsonl") as file:
            for record in records:
                file.append_line(encode(record), False)

    def append_orjson() -> None:
        with (directory / "orjson.jsonl").open("ab") as file:
            for record in records:
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
                file.flush()

    def append_json() -> None:
        with (directory / "json.jsonl").open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")
                file.flush()

    contenders: dict[str, Callable[[], None]] = {
        "sonde `RecordFile.append`": append_ours,
        "the same without its checksum": append_unsealed,
        "`orjson.dumps` + write + flush": append_orjson,
        "`json.dumps` + write + flush": append_json,
    }
    seconds = best_cpu_seconds(contenders, num_turns=_NUM_TURNS)
    line = seconds["`orjson.dumps` + write + flush"]
    print(
        f"Appending a record of ten floats, CPU, best of {_NUM_TURNS} (goal: at or under the orjson"
        " line)\n"
    )
    print(
        markdown_table(
            ["writer", "µs per record", "against orjson"],
            [
                (name, f"{took / _NUM_APPENDED * 1e6:.2f}", f"{took / line:.2f}x")
                for name, took in seconds.items()
            ],
        )
    )
    ours, unsealed, *_ = seconds.values()
    print(
        f"\nWith its checksum: {ours / unsealed:.2f}x of the same without (gate: at most 1.2x,"
        " goal: 1.1x)."
    )


def _print_indexing(
    directory: Path, num_records: int, metrics: list[str], *, is_compared: bool
) -> None:
    layout = RunLayout(directory / f"run-{num_records}")
    layout.records.mkdir(parents=True)
    path = layout.record_file(LOG, 0)
    with path.open("wb") as file:
        file.writelines(_log_lines(num_records, metrics))
    indexed = in_child(_index, layout)
    refreshed = in_child(_index, layout)
    print(
        f"\nIndexing {num_records:,} records of {len(metrics)} floats"
        f" ({path.stat().st_size / 1e9:.2f} GB)\n"
    )
    rows = [
        ("index built", *_cost_cells(indexed)),
        ("refresh, nothing new", *_cost_cells(refreshed)),
    ]
    print(markdown_table(["work", "seconds", "CPU seconds", "peak MB (process)"], rows))
    size = layout.index.stat().st_size / 1e6
    print(f"\nThe index takes {size:.0f} MB. Once it is there, best of {_NUM_OPENINGS}:\n")
    asked: dict[str, Callable[[], object]] = {
        "sonde: one series": lambda: _ours(layout, lambda index: index.series("loss")),
        "sonde: the record of one step": lambda: _ours(
            layout, lambda index: _one_step(index, num_records // 2)
        ),
        "sonde: names and counts of the metrics": lambda: _ours(layout, RunIndex.metrics),
    }
    if is_compared:
        asked["DuckDB on the JSON Lines: one series"] = lambda: _duckdb_series(path)
        _check_same(layout, path)
    milliseconds = {name: _best_milliseconds(ask) for name, ask in asked.items()}
    ours, _ = milliseconds["sonde: one series"]
    print(
        markdown_table(
            ["question", "ms", "CPU ms", "against our series"],
            [
                (name, f"{wall:.1f}", f"{cpu:.1f}", f"{wall / ours:.1f}x")
                for name, (wall, cpu) in milliseconds.items()
            ],
        )
    )
    if is_compared:
        print("\nGoal: DuckDB at 10x or more, our series at 50 ms or less.")


def _log_lines(num_records: int, metrics: list[str]) -> Iterator[bytes]:
    generator = random.Random(1)
    for step in range(num_records):
        record = {
            "timestamp": str(1.8e9 + step / 10),
            "elapsedtime": str(step / 10),
            "datetime": "2027-01-15 08:00:00.000000",
            "type": "LOG",
            "step": step,
            "rank": 0,
            "data": {name: generator.random() for name in metrics},
        }
        yield orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _index(layout: RunLayout) -> int:
    with RunIndex(layout) as index:
        index.refresh()
        return index.num_records()


def _ours(layout: RunLayout, ask: Callable[[RunIndex], Any]) -> Any:
    with RunIndex(layout) as index:
        return ask(index)


def _one_step(index: RunIndex, step: int) -> object:
    (record,) = index.records_at_step(LOG, step)
    return record


def _duckdb_series(path: Path) -> Any:
    columns = "{step: 'BIGINT', data: 'STRUCT(loss DOUBLE)'}"
    table = f"read_json('{path}', format='newline_delimited', columns={columns})"
    query = f"SELECT step, data.loss AS loss FROM {table}"  # noqa: S608
    with duckdb.connect() as connection:
        return connection.execute(query).fetchnumpy()


def _check_same(layout: RunLayout, path: Path) -> None:
    ours = _ours(layout, lambda index: index.series("loss"))
    theirs = _duckdb_series(path)
    assert (ours.steps == theirs["step"]).all()
    assert (ours.values == theirs["loss"]).all()


def _best_milliseconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU of the fastest turn of each."""
    wall = []
    cpu = []
    for _ in range(_NUM_OPENINGS):
        wall_start = time.perf_counter()
        cpu_start = time.process_time()
        work()
        wall.append((time.perf_counter() - wall_start) * 1e3)
        cpu.append((time.process_time() - cpu_start) * 1e3)
    return min(wall), min(cpu)


def _cost_cells(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.wall_seconds:.2f}", f"{cost.cpu_seconds:.2f}", f"{cost.peak_megabytes:.0f}"


if __name__ == "__main__":
    main()
