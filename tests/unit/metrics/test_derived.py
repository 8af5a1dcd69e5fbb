import logging
import math

import pytest

from sonde import metrics
from sonde.errors import SettingError


def test_a_derived_value_follows_the_meters_of_its_own_aggregator() -> None:
    with metrics.aggregate() as outer:
        metrics.log_scalar("loss", 2.0)
        with metrics.aggregate() as inner:
            metrics.log_scalar("loss", 4.0)
            metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].value, round=1)
    assert outer.get_smoothed_values() == {"loss": 3.0, "ppl": 8.0}
    assert inner.get_smoothed_values() == {"loss": 4.0, "ppl": 16.0}


def test_without_the_data_it_needs_it_has_none_and_says_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].value)
        assert agg.get_smoothed_values() == {}
        assert math.isnan(agg.get_smoothed_value("ppl"))
        metrics.log_scalar("loss", 1)
        assert agg.get_smoothed_values() == {"loss": 1, "ppl": 2}
        metrics.reset_meters("train")
        assert agg.get_smoothed_values() == {}
    assert caplog.records == []


def test_a_function_that_raises_shows_as_nan_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with metrics.aggregate() as agg:
        metrics.log_derived("broken", lambda _: 1 / 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert math.isnan(agg.get_smoothed_values()["broken"])
    assert len(caplog.records) == 1
    assert "division by zero" in caplog.text


def test_the_function_sees_only_meters_with_data() -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_scalar("a", 1)
        metrics.log_scalar("b", 1)
        metrics.reset_meter("train", "b")
        metrics.log_derived("has_a", lambda meters: "a" in meters)
        metrics.log_derived("has_b", lambda meters: "b" in meters)
    assert agg.get_smoothed_values() == {"a": 1, "has_a": 1.0, "has_b": 0.0}


def test_a_derived_value_of_a_derived_value() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("x", 3)
        metrics.log_derived("square", lambda meters: meters["x"].value ** 2)
        metrics.log_derived("fourth", lambda meters: meters["square"].value ** 2)
    assert agg.get_smoothed_values() == {"x": 3, "square": 9, "fourth": 81}


def test_a_later_function_replaces_the_earlier_one() -> None:
    with metrics.aggregate() as agg:
        metrics.log_derived("x", lambda _: 1)
        metrics.log_derived("x", lambda _: 2)
    assert agg.get_smoothed_values() == {"x": 2}


def test_something_that_is_no_function_is_refused() -> None:
    with pytest.raises(SettingError, match="needs a function"):
        metrics.log_derived("x", 3)  # type: ignore[arg-type]  # wrong on purpose
