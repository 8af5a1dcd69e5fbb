"""fairseq's metrics in detail, tried literally."""

import pytest

from sonde import metrics


def test_a_weight_of_0_shows_the_latest_value() -> None:
    with metrics.aggregate() as level:
        metrics.log_scalar("lr", 0.1, weight=0)
        metrics.log_scalar("lr", 0.2, weight=0)
    assert level.get_smoothed_values()["lr"] == 0.2


def test_what_is_more_important_comes_first_by_default() -> None:
    with metrics.aggregate() as level:
        metrics.log_start_time("wall")
        metrics.log_speed("wps", 1)
        metrics.log_derived("ppl", lambda _: 2.0)
        metrics.log_scalar("loss", 1.0)
        metrics.log_stop_time("wall")
    assert list(level) == ["loss", "ppl", "wps", "wall"]


def test_the_first_call_of_a_speed_starts_its_clock() -> None:
    with metrics.aggregate() as level:
        metrics.log_speed("wps", 1000)
    assert level.get_smoothed_values().get("wps", 0.0) == 0.0


def test_the_same_name_inside_itself_counts_once() -> None:
    with metrics.aggregate("train") as outer:
        with metrics.aggregate("train"):
            metrics.log_scalar("loss", 3.0)
        metrics.log_scalar("loss", 1.0)
    assert outer.get_smoothed_values()["loss"] == 2.0
    metrics.reset_meters("train")


def test_a_level_ends_with_an_exception() -> None:
    levels: list[metrics.Aggregator] = []

    def fail_inside() -> None:
        with metrics.aggregate() as level:
            levels.append(level)
            metrics.log_scalar("loss", 1.0)
            raise ValueError("planned")

    with pytest.raises(ValueError, match="planned"):
        fail_inside()
    metrics.log_scalar("loss", 9.0)
    assert levels[0].get_smoothed_values()["loss"] == 1.0
