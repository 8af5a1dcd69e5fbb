import pytest

from sonde import metrics
from sonde.errors import SettingError


def test_a_field_needs_no_announcement_and_appears_in_all_enclosing_levels() -> None:
    with metrics.aggregate("epoch") as epoch, metrics.aggregate("step") as step:
        metrics.log_scalar("grad_norm", 0.5)
    for level in (epoch, step, metrics.get_aggregator("default")):
        assert level.get_smoothed_values() == {"grad_norm": 0.5}


def test_the_first_call_decides_rounding_and_priority() -> None:
    metrics.log_scalar("x", 1.23456, round=2, priority=1)
    metrics.log_scalar("x", 1.23456, round=4, priority=99)
    metrics.log_scalar("y", 1.0, priority=2)
    assert metrics.get_smoothed_values("default") == {"x": 1.23, "y": 1.0}
    assert list(metrics.get_aggregator("default")) == ["x", "y"]


def test_one_key_cannot_be_two_kinds_of_meter() -> None:
    metrics.log_speed("x", 1)
    with pytest.raises(SettingError, match="already a rate"):
        metrics.log_scalar("x", 1.0)
    with pytest.raises(SettingError, match="already a rate"):
        metrics.log_start_time("x")
    metrics.log_stop_time("x")


def test_custom_meters_get_whatever_they_take() -> None:
    with metrics.aggregate() as agg:
        for value in (3.0, 7.0, 5.0):
            metrics.log_custom(metrics.Maximum, "high", value)
            metrics.log_custom(lambda: metrics.Sum(round=0), "total", value, weight=2, priority=1)
    assert agg.get_smoothed_values() == {"total": 30.0, "high": 7.0}


def test_log_custom_refuses_what_is_no_meter() -> None:
    with pytest.raises(SettingError, match="makes a meter"):
        metrics.log_custom(dict, "x")


def test_a_key_must_be_a_string() -> None:
    with pytest.raises(SettingError, match="new string"):
        metrics.log_scalar(3, 1.0)  # type: ignore[arg-type]  # wrong on purpose


def test_a_speed_is_measured_in_every_level() -> None:
    with metrics.aggregate("outer") as outer:
        metrics.log_speed("tokens/s", 10)
        with metrics.aggregate("inner") as inner:
            metrics.log_speed("tokens/s", 10)
            metrics.log_speed("tokens/s", 10)
    assert outer.get_smoothed_value("tokens/s") > 0
    assert inner.get_smoothed_value("tokens/s") > 0


def test_a_stopwatch_is_kept_in_every_level() -> None:
    with metrics.aggregate() as agg:
        metrics.log_start_time("data_wait", round=6)
        metrics.log_stop_time("data_wait", weight=2)
    watch = agg["data_wait"]
    assert isinstance(watch, metrics.Stopwatch)
    assert watch.sum > 0
    assert watch.avg == watch.sum / 2
