import math
from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.log.backend import Pace


def record(step: Any, **data: Any) -> dict[str, Any]:
    return {"type": "LOG", "step": step, "data": data}


def test_every_n_gives_the_mean_of_all_it_held_back() -> None:
    pace = Pace(every_n=3)
    out = [passed for step in range(7) for passed in pace.admit(record(step, loss=float(step)))]
    assert [(passed["step"], passed["data"]) for passed in out] == [
        (2, {"loss": 1.0}),
        (5, {"loss": 4.0}),
    ]
    assert [passed["data"] for passed in pace.take()] == [{"loss": 6.0}]
    assert pace.take() == []


def test_every_seconds_lets_the_first_through_and_then_one_each_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("sonde.log.backend.time.monotonic", lambda: now[0])
    pace = Pace(every_seconds=10.0)
    seen = []
    for second in range(35):
        now[0] = float(second)
        seen += [
            (second, passed["data"]["loss"])
            for passed in pace.admit(record(second, loss=float(second)))
        ]
    assert seen == [(0, 0.0), (10, 5.5), (20, 15.5), (30, 25.5)]


def test_whichever_is_due_first_counts() -> None:
    pace = Pace(every_n=2, every_seconds=1000.0)
    assert len(pace.admit(record(0, loss=1.0))) == 1
    assert pace.admit(record(1, loss=1.0)) == []
    assert len(pace.admit(record(2, loss=3.0))) == 1


def test_keys_of_all_records_come_out_and_what_is_no_number_is_the_last() -> None:
    pace = Pace(every_n=3)
    pace.admit(record(0, loss=1.0, note="a", flag=True))
    pace.admit(record(1, loss=3.0, lr=0.1))
    (out,) = pace.admit(record(2, note="b", flag=False))
    assert out["data"] == {"loss": 2.0, "note": "b", "flag": False, "lr": 0.1}


def test_a_constant_keeps_its_type() -> None:
    pace = Pace(every_n=2)
    pace.admit(record(0, rank=0, shape=[1, 2]))
    (out,) = pace.admit(record(1, rank=0, shape=[1, 2]))
    assert out["data"] == {"rank": 0, "shape": [1, 2]}
    assert isinstance(out["data"]["rank"], int)


def test_a_nan_is_not_hidden_by_the_mean() -> None:
    pace = Pace(every_n=3)
    pace.admit(record(0, loss=math.nan))
    pace.admit(record(1, loss=1.0))
    (out,) = pace.admit(record(2, loss=1.0))
    assert math.isnan(out["data"]["loss"])


def test_an_int_beyond_floats_does_not_raise() -> None:
    pace = Pace(every_n=2)
    pace.admit(record(0, big=10**400))
    (out,) = pace.admit(record(1, big=10**400 + 1))
    assert out["data"]["big"] == 10**400 + 1


def test_names_and_summaries_pass_at_once_after_what_was_pending() -> None:
    pace = Pace(every_n=10)
    pace.admit(record(0, loss=1.0))
    out = pace.admit(record("summary", accuracy=0.5))
    assert [(passed["step"], passed["data"]) for passed in out] == [
        (0, {"loss": 1.0}),
        ("summary", {"accuracy": 0.5}),
    ]


def test_a_step_of_another_shape_is_not_mixed_in() -> None:
    pace = Pace(every_n=10)
    pace.admit(record((0, 1), loss=1.0))
    assert [passed["step"] for passed in pace.admit(record((0, 1, 0), loss=9.0))] == [(0, 1)]
    assert [passed["data"] for passed in pace.take()] == [{"loss": 9.0}]


@pytest.mark.parametrize(
    "options", [{"every_n": 0}, {"every_seconds": -1.0}, {"every_seconds": math.nan}]
)
def test_impossible_paces_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="every_"):
        Pace(**options)
