"""Learning-rate schedules against their formulas."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.errors import SettingError
from sonde.train.schedule import Plateau, Schedule

NAMES = ("inverse_sqrt", "cosine", "linear", "polynomial", "constant", "wsd")


def make(name: Any, **settings: Any) -> Schedule:
    return Schedule(
        **({"schedule": name, "lr": 1.0, "warmup": 4, "schedule_updates": 20} | settings)
    )


@pytest.mark.parametrize("name", NAMES)
def test_warm_up_rises_in_a_straight_line_to_the_peak(name: str) -> None:
    schedule = make(name)
    assert [schedule.rate(update) for update in range(4)] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("name", "update", "expected"),
    [
        ("inverse_sqrt", 15, math.sqrt(4 / 16)),
        ("cosine", 12, 0.5),
        ("cosine", 20, 0.0),
        ("cosine", 999, 0.0),
        ("linear", 12, 0.5),
        ("polynomial", 11, 0.5),
        ("polynomial", 19, 0.0),
        ("constant", 999, 1.0),
        ("wsd", 17, 1.0),
        ("wsd", 19, 0.5),
        ("wsd", 20, 0.0),
    ],
)
def test_the_shape_after_the_warm_up(name: str, update: int, expected: float) -> None:
    assert make(name).rate(update) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(("warmup", "power"), [(4, 1.0), (0, 1.0), (4, 2.5)])
def test_a_polynomial_is_fairseqs(warmup: int, power: float) -> None:
    """Its rate after `num_updates`, as PolynomialDecayLRSchedule.step_update gives it."""

    def fairseqs(num_updates: int) -> float:
        if warmup > 0 and num_updates <= warmup:
            return num_updates / warmup
        if num_updates >= 20:
            return 0.1
        return float(0.9 * (1 - (num_updates - warmup) / (20 - warmup)) ** power + 0.1)

    schedule = make("polynomial", warmup=warmup, power=power, end_lr=0.1)
    assert [schedule.rate(n - 1) for n in range(1, 25)] == pytest.approx(
        [fairseqs(n) for n in range(1, 25)]
    )
    assert Schedule(schedule="polynomial", lr=1.0, schedule_updates=2).power == 1.0


def test_the_shape_ends_at_the_end_rate() -> None:
    for name in ("cosine", "linear", "polynomial", "wsd"):
        assert make(name, end_lr=0.1).rate(20) == pytest.approx(0.1)


@given(
    name=st.sampled_from(NAMES),
    warmup=st.integers(1, 50),
    extra=st.integers(1, 200),
    update=st.integers(0, 400),
)
def test_every_rate_lies_between_zero_and_the_peak_and_never_rises_after_it(
    name: str, warmup: int, extra: int, update: int
) -> None:
    schedule = make(name, warmup=warmup, schedule_updates=warmup + extra)
    assert 0 <= schedule.rate(update) <= 1.0
    if update >= warmup:
        assert schedule.rate(update + 1) <= schedule.rate(update)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "cosin"}, "cosin"),
        ({"name": "cosine", "schedule_updates": None}, "schedule_updates"),
        ({"name": "cosine", "schedule_updates": 4}, "schedule_updates"),
        ({"name": "constant", "lr": 0.0}, "lr"),
        ({"name": "constant", "lr": math.nan}, "lr"),
        ({"name": "linear", "end_lr": 2.0}, "end_lr"),
        ({"name": "inverse_sqrt", "warmup": 0}, "warmup"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        make(**settings)


def test_plateau_lowers_the_rate_after_patience_and_survives_a_resume() -> None:
    plateau = Plateau(factor=0.5, patience=2)
    for value in (3.0, 2.0, 2.0):
        plateau.observe(value)
    assert plateau.scale == 1.0
    again = Plateau(factor=0.5, patience=2)
    again.load_state_dict(plateau.state_dict())
    again.observe(math.nan)
    assert again.scale == 0.5
    again.observe(1.0)
    assert again.scale == 0.5
