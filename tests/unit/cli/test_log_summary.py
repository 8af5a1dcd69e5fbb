import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonde.cli.log import LogSummary, summarise
from sonde.log.reading import read
from sonde.records.append import RecordFile


def written(path: Path, records: list[dict[str, Any]], damaged: bytes = b"") -> Path:
    with RecordFile(path) as file:
        for place, record in enumerate(records):
            file.append(
                {"timestamp": 100.0 + place, "elapsedtime": float(place), "type": "LOG", "rank": 0}
                | record
            )
    path.write_bytes(path.read_bytes() + damaged)
    return path


@pytest.fixture
def summary_of(tmp_path: Path) -> Callable[..., LogSummary]:
    def summary(rows: list[tuple[Any, dict[str, Any]]], **metadata: dict[str, Any]) -> LogSummary:
        known = [
            {"type": "METADATA", "metric": name, "metadata": values}
            for name, values in metadata.items()
        ]
        path = tmp_path / "log.jsonl"
        path.unlink(missing_ok=True)
        return summarise(
            written(path, known + [{"step": step, "data": data} for step, data in rows])
        )

    return summary


def test_best_follows_the_goal(summary_of: Callable[..., LogSummary]) -> None:
    rows = [(n, {"loss": x, "acc": x, "lr": x}) for n, x in enumerate([2.0, 1.0, 3.0])]
    known = {"loss": {"GOAL": "MINIMIZE", "unit": "nats"}, "acc": {"GOAL": "maximize"}}
    loss, acc, lr = summary_of(rows, **known).metrics
    assert (loss.best, loss.best_step, loss.last, loss.mean, loss.unit) == (
        1.0,
        1,
        3.0,
        2.0,
        "nats",
    )
    assert (acc.best, acc.best_step) == (3.0, 2)
    assert (lr.best, lr.goal, lr.num_values) == (None, None, 3)


def test_a_file_that_has_nothing_to_read_now_is_an_empty_log() -> None:
    try:
        os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/proc/kmsg is not for us: {error.strerror}")
    assert summarise("/proc/kmsg").metrics == []


def test_what_is_not_finite_is_counted_and_never_best(
    summary_of: Callable[..., LogSummary],
) -> None:
    rows = [(n, {"loss": x}) for n, x in enumerate([math.nan, -math.inf, 5.0])]
    (loss,) = summary_of(rows, loss={"GOAL": "MINIMIZE"}).metrics
    assert (loss.best, loss.mean, loss.num_non_finite) == (5.0, 5.0, 2)
    (loss,) = summary_of(rows[:1], loss={"GOAL": "MINIMIZE"}).metrics
    assert loss.best is None
    assert math.isnan(loss.mean)


def test_words_are_no_metrics(summary_of: Callable[..., LogSummary]) -> None:
    assert summary_of([(1, {"note": "x"})]).metrics == []


def test_duration_and_last_step(summary_of: Callable[..., LogSummary]) -> None:
    log = summary_of([([0, 1], {"a": 1}), ([], {"a": 1}), ("end", {"a": 1})])
    assert (log.seconds, log.last_step) == (2.0, [0, 1])
    empty = summary_of([])
    assert (empty.seconds, empty.last_step) == (None, None)


def by_columns(path: Path) -> LogSummary:
    """Summed up by columns, which says the same as record by record."""
    summed = summarise(path)
    log = read(path)
    assert (summed.num_superseded, summed.num_bad, summed.num_lost) == (
        log.num_superseded,
        log.num_bad,
        log.num_lost,
    )
    for metric in summed.metrics:
        series = log.series(metric.metric)
        assert (metric.num_values, repr(metric.last)) == (
            len(series),
            repr(float(series.values[-1])),
        )
        assert metric.last_step == series.step_at(-1)
    return summed


def test_a_log_summed_up_by_columns_is_as_by_records(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"type": "METADATA", "metric": "loss", "metadata": {"GOAL": "MINIMIZE", "unit": "nats"}}
    ]
    for step in range(3000):
        data: dict[str, Any] = {
            "loss": math.nan if step == 7 else 1 / (step + 1),
            "word": "NaN",
            "count": step,
        }
        records.append(
            {
                "step": step,
                "data": data | ({"eval.loss": 2**70, "ok": True} if step % 100 == 0 else {}),
            }
        )
    records += [{"type": "INFO", "data": {"a": [1]}}, {"step": "end", "data": {"bleu": 30.5}}]
    summed = by_columns(written(tmp_path / "log.jsonl", records, b'{"type":"LOG"\n\0\0\n'))
    assert (summed.num_records, summed.num_bad, summed.last_step, summed.seconds) == (
        3003,
        2,
        2999,
        3002.0,
    )
    assert [metric.metric for metric in summed.metrics] == [
        "loss",
        "count",
        "eval.loss",
        "ok",
        "bleu",
    ]
    assert (summed.metrics[0].best, summed.metrics[0].num_non_finite) == (1 / 3000, 1)


def test_lists_as_steps_and_a_run_that_went_back_are_summed_up_as_by_records(
    tmp_path: Path,
) -> None:
    lists = [
        {"step": [epoch, step], "data": {"loss": 1.0}} for epoch in range(2) for step in range(1000)
    ]
    assert by_columns(written(tmp_path / "lists.jsonl", lists)).last_step == [1, 999]
    back = [{"step": step, "data": {"loss": 1.0}} for step in (*range(1000), *range(500, 700))]
    assert by_columns(written(tmp_path / "back.jsonl", back)).num_superseded == 500
    assert (
        by_columns(
            written(tmp_path / "mixed.jsonl", [*lists, {"step": 3, "data": {"b": 1}}])
        ).num_records
        == 2001
    )


def test_summing_up_is_linear_in_the_number_of_names(tmp_path: Path) -> None:
    def seconds(num_names: int) -> float:
        path = written(
            tmp_path / f"{num_names}.jsonl",
            [{"step": n, "data": {f"m{n}": 0.5}} for n in range(num_names)],
        )
        found = []
        for _ in range(3):  # other tests run beside this one
            start = time.process_time()
            assert len(summarise(path).metrics) == num_names
            found.append(time.process_time() - start)
        return min(found)

    assert seconds(8000) < 8 * seconds(2000)


def test_a_hole_of_a_terabyte_is_passed_over_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", [{"step": 1, "data": {"loss": 1.0}}])
    with path.open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"type":"LOG","step":2,"timestamp":101,"elapsedtime":1,"data":{"loss":2}}\n')
    start = time.process_time()
    summed = by_columns(path)
    assert (summed.num_records, summed.num_bad, summed.last_step) == (2, 1, 2)
    assert time.process_time() - start < 5
