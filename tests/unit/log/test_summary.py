import math
from typing import Any

from sonde.log.reading import Log
from sonde.log.record import LogRecord
from sonde.log.summary import duration_seconds, last_step, summarise


def log_of(rows: list[tuple[Any, dict[str, Any]]], **metadata: dict[str, Any]) -> Log:
    records = [LogRecord(type="METADATA", metric=name, data=known) for name, known in metadata.items()]
    records += [LogRecord(type="LOG", step=step, data=data, timestamp=100.0 + n) for n, (step, data) in enumerate(rows)]
    return Log(records)


def test_best_follows_the_goal() -> None:
    rows = [(n, {"loss": x, "acc": x, "lr": x}) for n, x in enumerate([2.0, 1.0, 3.0])]
    loss, acc, lr = summarise(log_of(rows, loss={"GOAL": "MINIMIZE", "unit": "nats"}, acc={"GOAL": "maximize"}))
    assert (loss.best, loss.best_step, loss.last, loss.mean, loss.unit) == (1.0, 1, 3.0, 2.0, "nats")
    assert (acc.best, acc.best_step) == (3.0, 2)
    assert (lr.best, lr.goal, lr.num_values) == (None, None, 3)


def test_what_is_not_finite_is_counted_and_never_best() -> None:
    rows = [(n, {"loss": x}) for n, x in enumerate([math.nan, -math.inf, 5.0])]
    (loss,) = summarise(log_of(rows, loss={"GOAL": "MINIMIZE"}))
    assert (loss.best, loss.mean, loss.num_non_finite) == (5.0, 5.0, 2)
    (loss,) = summarise(log_of(rows[:1], loss={"GOAL": "MINIMIZE"}))
    assert loss.best is None
    assert math.isnan(loss.mean)


def test_words_are_no_metrics() -> None:
    assert summarise(log_of([(1, {"note": "x"})])) == []


def test_duration_and_last_step() -> None:
    log = log_of([([0, 1], {"a": 1}), ([], {"a": 1}), ("end", {"a": 1})])
    assert duration_seconds(log) == 2.0
    assert last_step(log) == [0, 1]
    assert duration_seconds(Log([])) is None
    assert last_step(Log([])) is None
