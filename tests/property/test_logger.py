"""Whatever is logged reads back as it was; whatever a file holds, the reader survives it."""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sonde.cli.compare import LogComparison, ToleranceFlags, smoothed
from sonde.log import JSONStreamBackend, Logger, LogRecord, Verbosity, read, read_series
from sonde.log.backend import Pace
from sonde.log.resume import drop_superseded
from sonde.records.columns import Series

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
DATA = st.dictionaries(st.text(), VALUES, max_size=5) | st.dictionaries(
    st.text(), st.floats(), max_size=5
)
STEPS = st.integers(0, 2**62) | st.lists(st.integers(0, 2**62), max_size=4) | st.text() | st.none()
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(records=st.lists(st.tuples(STEPS, DATA), max_size=5))
def test_what_was_logged_reads_back(records: list[tuple[Any, dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.json"
        with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
            for step, data in records:
                logger.log(step, data)
        log = read(path, keep_superseded=True)
    assert logger.num_lost == log.num_bad == 0
    np.testing.assert_equal([(record.step, record.data) for record in log], records)


NUMBERS = st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=3)
LINES = st.fixed_dictionaries(
    {"type": st.sampled_from(["LOG", "INFO", "METADATA", "GAP", 5])},
    optional=dict.fromkeys(
        ("timestamp", "elapsedtime", "datetime", "step", "rank", "num_lost", "metric"), NUMBERS
    )
    | {"data": st.just({"loss": 1.0}) | NUMBERS, "metadata": NUMBERS},
)


@given(
    prefix=st.sampled_from(["", "DLLL ", "TCAPPDLL ", "INFO "]), lines=st.lists(LINES, max_size=4)
)
def test_fields_of_any_type_make_no_reader_raise(prefix: str, lines: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.json"
        path.write_text("".join(f"{prefix}{json.dumps(line)}\n" for line in lines))
        log = read(path)
        log.columns()
        assert set(log.metadata) <= {
            line.get("metric") for line in lines if isinstance(line.get("metric"), str)
        }
        assert (
            len(log) + log.num_bad + sum(line["type"] == "GAP" for line in lines)
            >= len(lines) - log.num_superseded
        )
        np.testing.assert_array_equal(read_series(path, "loss").values, log.series("loss").values)


@given(
    lines=st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"DLLL {", b'INFO {"type": "INFO"}', b"TCAPPDLL []"])
    )
)
def test_no_content_makes_the_reader_raise(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.json"
        path.write_bytes(b"\n".join(lines))
        assert len(read(path)) <= len(lines)
        assert len(read_series(path, "loss")) == 0


@given(steps=st.lists(st.integers(0, 6), max_size=12), split=st.integers(0, 12))
def test_after_the_resume_rule_a_metric_never_goes_back(steps: list[int], split: int) -> None:
    records = [
        LogRecord(
            type="LOG",
            step=step,
            data={"loss": position},
            timestamp=(1000.0 if position < split else 2000.0) + position,
            elapsedtime=float(position),
        )
        for position, step in enumerate(steps)
    ]
    kept, num_superseded = drop_superseded(records)
    kept_steps = [record.step for record in kept]
    assert kept_steps == sorted(kept_steps)
    assert len(kept) + num_superseded == len(records)
    assert kept[-1:] == records[-1:]


@given(values=st.lists(FINITE, max_size=30), every_n=st.integers(1, 10))
def test_throttling_keeps_the_sum(values: list[float], every_n: int) -> None:
    pace = Pace(every_n=every_n)
    out = [
        record
        for step, value in enumerate(values)
        for record in pace.admit({"step": step, "data": {"x": value}})
    ]
    out += pace.take()
    weights = [min(every_n, len(values) - start) for start in range(0, len(values), every_n)]
    total = math.fsum(
        weight * written["data"]["x"] for weight, written in zip(weights, out, strict=True)
    )
    assert math.isclose(
        total, math.fsum(values), rel_tol=1e-6, abs_tol=1e-6 * max(map(abs, values), default=1.0)
    )


@given(values=st.lists(FINITE, min_size=1, max_size=40), window=st.integers(1, 50))
def test_smoothing_stays_within_the_values(values: list[float], window: int) -> None:
    means = smoothed(np.array(values, float), window)
    slack = 1e-9 * max(map(abs, values)) * len(values)
    assert len(means) == len(values)
    assert means.min() >= min(values) - slack
    assert means.max() <= max(values) + slack


@given(values=st.lists(st.floats(), min_size=1, max_size=20))
def test_a_series_agrees_with_itself(values: list[float]) -> None:
    series = Series(steps=np.arange(len(values)), values=np.array(values))
    assert LogComparison(series, series).is_within(ToleranceFlags(rtol=0.0, atol=0.0))
