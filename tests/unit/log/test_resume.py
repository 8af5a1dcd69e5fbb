from typing import Any

import pytest

from sonde.log.lines import LogRecord
from sonde.log.resume import drop_superseded


def logged(
    step: Any, *, start: float = 1000.0, at: float | None = None, rank: int = 0, **data: Any
) -> LogRecord:
    """A LOG record of the logger that started at `start`, written `at` seconds after."""
    if at is None:
        at = float(step) if isinstance(step, int) else 1.0
    data = data or {"loss": 1.0}
    return LogRecord(
        type="LOG", step=step, data=data, rank=rank, timestamp=start + at, elapsedtime=at
    )


def steps(records: list[LogRecord]) -> list[Any]:
    return [record.step for record in records]


def test_a_run_that_only_goes_on_keeps_everything() -> None:
    records = [logged(step) for step in range(5)]
    assert drop_superseded(records) == (records, 0)


def test_a_new_start_supersedes_from_its_first_step_on() -> None:
    first = [logged(step, loss=1.0) for step in range(10)]
    second = [logged(step, start=2000.0, loss=2.0) for step in range(5, 7)]
    kept, num = drop_superseded(first + second)
    assert [(r.step, r.data["loss"]) for r in kept] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 2),
        (6, 2),
    ]
    assert num == 5


def test_a_new_start_supersedes_metrics_it_has_not_logged_yet() -> None:
    first = [logged(60, val=1.0), logged(80, val=2.0)]
    second = [logged(50, start=2000.0, loss=1.0), logged(70, start=2000.0, loss=1.0)]
    assert steps(drop_superseded(first + second)[0]) == [50, 70]


def test_a_third_start_judges_the_first_two() -> None:
    first = [logged(step) for step in range(6)]
    second = [logged(step, start=2000.0) for step in range(4, 9)]
    third = [logged(step, start=3000.0) for step in range(2, 4)]
    assert steps(drop_superseded(first + second + third)[0]) == [0, 1, 2, 3]


def test_going_back_within_one_start_is_judged_by_metric() -> None:
    records = [logged(s, loss=1.0) for s in (0, 1, 2, 3)] + [
        logged(1, loss=2.0),
        logged(2, loss=2.0),
    ]
    kept, num = drop_superseded(records)
    assert [(r.step, r.data["loss"]) for r in kept] == [(0, 1.0), (1, 2.0), (2, 2.0)]
    assert num == 3


def test_a_validation_that_counts_by_itself_supersedes_no_training() -> None:
    train = [logged([0, i], loss=1.0) for i in range(4)]
    validation = [logged([0, i], val=1.0) for i in range(2)]
    kept, num = drop_superseded(
        train + validation + [logged([1, 0], loss=1.0), logged([1, 0], val=1.0)]
    )
    assert num == 0
    assert len(kept) == 8


def test_a_record_keeps_what_was_not_logged_again() -> None:
    records = [logged(5, loss=1.0, lr=0.1), logged(3, loss=2.0)]
    kept, num = drop_superseded(records)
    assert [r.data for r in kept] == [{"lr": 0.1}, {"loss": 2.0}]
    assert num == 1


@pytest.mark.parametrize("summary", [[0], [], None, "summary"])
def test_summaries_and_names_are_no_steps_back(summary: Any) -> None:
    records = [logged([0, 5]), logged(summary), logged([0, 6]), logged([1, 0])]
    assert drop_superseded(records) == (records, 0)


def test_the_same_step_again_is_no_step_back() -> None:
    records = [logged(5, loss=1.0), logged(5, loss=2.0)]
    assert drop_superseded(records) == (records, 0)


def test_each_rank_is_judged_by_itself() -> None:
    records = [logged(3, rank=0), logged(1, rank=1), logged(4, rank=0), logged(2, rank=1)]
    assert drop_superseded(records) == (records, 0)


def test_loggers_that_write_at_the_same_time_supersede_nothing() -> None:
    one = [logged(step, start=1000.0, at=float(step), a=1.0) for step in range(4)]
    other = [logged(step, start=1000.5, at=float(step), b=1.0) for step in range(4)]
    mixed = [record for pair in zip(one, other, strict=True) for record in pair]
    assert drop_superseded(mixed) == (mixed, 0)


def test_a_start_is_known_through_rounding() -> None:
    records = [logged(step, start=1000.0005, at=step / 3) for step in range(50)]
    assert drop_superseded(records) == (records, 0)


def test_records_without_times_are_judged_by_metric() -> None:
    records = [LogRecord(type="LOG", step=step, data={"loss": step}) for step in (0, 1, 2, 1)]
    assert [(r.step, r.data["loss"]) for r in drop_superseded(records)[0]] == [(0, 0), (1, 1)]


def test_info_and_metadata_always_stand() -> None:
    info = LogRecord(type="INFO", data="x", timestamp=1000.0, elapsedtime=0.0)
    kept, _ = drop_superseded([info, logged(5), info, logged(5, start=2000.0)])
    assert [record.type for record in kept] == ["INFO", "INFO", "LOG"]
