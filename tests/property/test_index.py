"""Whatever is done to the record files between refreshes, the index says what a plain reading of
them says.
"""

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.records import index_database, reader
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.reader import LineScanner, Record, parse_line
from sonde.records.values import NO_STEP, encode

NAMES = ("loss", "lr", "a", "b", "a.b", "größe", "$x", "NaN")

numbers = st.one_of(st.floats(), st.integers(), st.booleans())
values = st.one_of(
    numbers,
    st.none(),
    st.sampled_from(["NaN", "=NaN", "1.5", "text"]),
    st.lists(numbers, max_size=2),
    st.binary(max_size=3),
)
objects = st.recursive(
    st.dictionaries(st.sampled_from(NAMES), values, max_size=4),
    lambda nested: st.dictionaries(st.sampled_from(NAMES), values | nested, max_size=4),
    max_leaves=4,
)
steps = st.one_of(
    st.integers(0, 3),
    st.integers(),
    st.lists(st.integers(0, 2), max_size=4),
    st.none(),
    st.floats(0, 3),
    st.sampled_from(["summary", "NaN", "=NaN", ""]),
)
records = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["LOG", "EVENT", "NaN", 3, None]),
        "step": steps,
        "data": objects | values,
    },
)
lines = st.one_of(
    records.map(encode),
    st.sampled_from(
        [b"\n", b"torn\n", b"[1]\n", b'{"data":\n', b'\0\0{"data":{"loss":1}}\n', b'{"a":"\xff"}\n']
    ),
    st.just(b'{"data":{"loss":NaN,"lr":Infinity},"step":1}\r\n'),
)
changes = st.one_of(
    st.lists(lines, min_size=1, max_size=6).map(lambda found: ("append", b"".join(found))),
    st.binary(max_size=8).map(lambda torn: ("append", torn)),
    st.integers(0, 200).map(lambda num_bytes: ("cut", num_bytes)),
    st.lists(lines, max_size=3).map(lambda found: ("replace", b"".join(found))),
    st.just(("delete", b"")),
)


@dataclass
class Reading:
    """What a plain reading finds in one file: the whole lines, decoded one by one."""

    num_bad: int = 0
    located: list[tuple[int, Record]] = field(default_factory=list)


def read_plainly(path: Path) -> Reading:
    reading = Reading()
    if path.exists():
        scanner = LineScanner(path)
        with path.open("rb") as file:
            for offset, line in scanner.lines(file):
                record = parse_line(scanner, offset, line)
                if record is not None:
                    reading.located.append((offset, record))
        reading.num_bad = scanner.num_bad
    return reading


def flat(data: object, prefix: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, (int, float)):
                try:
                    yield f"{prefix}{key}", float(value)
                except OverflowError:
                    pass
            else:
                yield from flat(value, f"{prefix}{key}.")


def step_numbers(step: object) -> tuple[int, ...]:
    numbers = []
    for part in step if isinstance(step, list) else [step]:
        if (
            not isinstance(part, (int, float))
            or not math.isfinite(part)
            or part != int(part)
            or abs(part) >= 2**63
        ):
            return ()
        numbers.append(int(part))
    return tuple(numbers) if len(numbers) <= 3 else ()


def check(index: RunIndex, path: Path) -> None:
    reading = read_plainly(path)
    assert index.num_bad() == reading.num_bad
    assert index.num_records() == len(reading.located)
    found: dict[str, list[tuple[tuple[int, ...], float]]] = {}
    for _, record in reading.located:
        for name, number in dict(flat(record.get("data"))).items():
            found.setdefault(name, []).append((step_numbers(record.get("step")), number))
    assert index.metrics() == {name: len(points) for name, points in sorted(found.items())}
    for name, points in found.items():
        series = index.series(name)
        np.testing.assert_array_equal(series.values, [number for _, number in points])
        got = series.steps.reshape(len(points), -1)
        assert [tuple(n for n in row if n != NO_STEP) for row in got.tolist()] == [
            step for step, _ in points
        ]
    by_step: dict[tuple[int, ...], list[object]] = {}
    for _, record in reading.located:
        by_step.setdefault(step_numbers(record.get("step")), []).append(record)
    for step, records in by_step.items():
        assert len(index.records_at_step("log", step)) == (len(records) if step else 0)


@pytest.mark.slow
@given(
    st.lists(st.tuples(changes, st.booleans()), max_size=8), st.integers(1, 5), st.integers(1, 100)
)
@settings(max_examples=150)
def test_the_index_says_what_a_plain_reading_says(
    history: list[tuple[tuple[str, bytes | int], bool]], chunk_records: int, block_bytes: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(index_database, "CHUNK_RECORDS", chunk_records),
        mock.patch.object(reader, "_BLOCK_BYTES", block_bytes),
        RunIndex(RunLayout(Path(directory))) as index,
    ):
        layout = RunLayout(Path(directory))
        layout.records.mkdir()
        path = layout.record_file("log", 0)
        for (change, argument), is_refreshed in history:
            before = path.read_bytes() if path.exists() else b""
            if isinstance(argument, int):
                path.write_bytes(before[: max(len(before) - argument, 0)])
            elif change == "delete":
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(argument if change == "replace" else before + argument)
            if is_refreshed:
                index.refresh()
                check(index, path)
        index.refresh()
        check(index, path)
