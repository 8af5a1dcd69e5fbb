"""What fairseq's metrics do, each as a test; the numbers are those of its own tests."""

import math
from typing import Any

import pytest

from sonde import metrics
from sonde.errors import SettingError


def test_an_inner_level_has_its_own_values_and_the_outer_one_has_all() -> None:
    with metrics.aggregate() as outer:
        metrics.log_scalar("loss", 1)
        with metrics.aggregate() as inner:
            metrics.log_scalar("loss", 2)
    assert outer.get_smoothed_values()["loss"] == 1.5
    assert inner.get_smoothed_values()["loss"] == 2


def test_a_new_root_hides_the_outer_levels() -> None:
    with metrics.aggregate() as outer:
        metrics.log_scalar("loss", 1)
        with metrics.aggregate(new_root=True) as root:
            metrics.log_scalar("loss", 2)
    assert outer.get_smoothed_values()["loss"] == 1
    assert root.get_smoothed_values()["loss"] == 2


def test_nested_new_roots() -> None:
    with metrics.aggregate() as layer1:
        metrics.log_scalar("loss", 1)
        with metrics.aggregate(new_root=True) as layer2:
            metrics.log_scalar("loss", 2)
            with metrics.aggregate() as layer3:
                metrics.log_scalar("loss", 3)
                with metrics.aggregate(new_root=True) as layer4:
                    metrics.log_scalar("loss", 4)
        metrics.log_scalar("loss", 1.5)
    layers = (layer1, layer2, layer3, layer4)
    assert [layer.get_smoothed_value("loss") for layer in layers] == [1.25, 2.5, 3, 4]


def test_a_named_level_goes_on_where_it_was_left() -> None:
    metrics.reset_meters("mine")
    with metrics.aggregate("mine"):
        metrics.log_scalar("loss", 1)
    metrics.log_scalar("loss", 3)
    with metrics.aggregate("mine"):
        metrics.log_scalar("loss", 2)
    assert metrics.get_smoothed_values("mine")["loss"] == 1.5


def test_a_name_entered_twice_counts_once() -> None:
    with metrics.aggregate("mine"):
        metrics.log_scalar("loss", 1)
        with metrics.aggregate() as other, metrics.aggregate("mine"):
            metrics.log_scalar("loss", 2)
        metrics.log_scalar("loss", 6)
    assert metrics.get_smoothed_values("mine")["loss"] == 3
    assert other.get_smoothed_values()["loss"] == 2


def test_an_average_is_weighted() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("loss", 2.0, weight=10)
        metrics.log_scalar("loss", 1.0, weight=30)
    assert agg.get_smoothed_value("loss") == 1.25


def test_weight_zero_shows_the_latest_value() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("lr", 0.1, weight=0)
        metrics.log_scalar("lr", 0.05, weight=0)
    assert agg.get_smoothed_value("lr") == 0.05


def test_the_default_aggregator_sees_the_whole_run_but_nothing_in_a_new_root() -> None:
    metrics.log_scalar("loss", 1)
    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2)
        with metrics.aggregate("valid", new_root=True):
            metrics.log_scalar("loss", 100)
    assert metrics.get_smoothed_values("default") == {"loss": 1.5}


def test_the_name_default_cannot_be_entered() -> None:
    with pytest.raises(SettingError, match="default"):
        metrics.aggregate("default")


def test_values_are_shown_by_priority_and_then_by_age() -> None:
    with metrics.aggregate() as agg:
        metrics.log_custom(metrics.Maximum, "custom", 1.0)
        metrics.log_start_time("time")
        metrics.log_stop_time("time")
        metrics.log_speed("speed", 1)
        metrics.log_speed("speed", 1)
        metrics.log_derived("derived", lambda meters: meters["b"].value)
        metrics.log_scalar("b", 1)
        metrics.log_scalar("a", 1)
        metrics.log_scalar("first", 1, priority=0)
    assert list(agg.get_smoothed_values()) == [
        "first",
        "b",
        "a",
        "derived",
        "speed",
        "time",
        "custom",
    ]


def test_a_key_with_an_underscore_is_kept_but_not_shown() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("_hidden", 1)
    assert agg.get_smoothed_values() == {}
    assert agg.get_smoothed_value("_hidden") == 1


def test_derived_values_are_not_saved() -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_scalar("loss", 2)
        metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].value)
    assert agg.get_smoothed_values() == {"loss": 2, "ppl": 4}
    assert [row["key"] for row in agg.state_dict()["meters"]] == ["loss"]


def test_the_first_speed_only_starts_the_clock() -> None:
    with metrics.aggregate() as agg:
        metrics.log_speed("tokens/s", 1000)
        assert agg.get_smoothed_values() == {}
        metrics.log_speed("tokens/s", 1)
    rate = agg["tokens/s"]
    assert isinstance(rate, metrics.Rate)
    assert rate.sum == 1


def test_an_inner_level_resets_and_the_outer_ones_go_on() -> None:
    shown = []
    with metrics.aggregate("train"):
        for step in range(6):
            with metrics.aggregate("train_inner"):
                metrics.log_scalar("loss", step)
            if step % 2 == 1:
                shown.append(metrics.get_smoothed_value("train_inner", "loss"))
                metrics.reset_meters("train_inner")
    assert shown == [0.5, 2.5, 4.5]
    assert (
        metrics.get_smoothed_value("train", "loss")
        == metrics.get_smoothed_value("default", "loss")
        == 2.5
    )


def test_the_stack_is_restored_after_an_exception() -> None:
    """Here fairseq leaves the name active."""
    with (
        pytest.raises(RuntimeError),
        metrics.aggregate("broken", new_root=True),
        metrics.aggregate(),
    ):
        raise RuntimeError
    metrics.log_scalar("loss", 1)
    assert metrics.get_smoothed_values("broken") == {}
    assert [agg.name for agg in metrics.get_active_aggregators()] == ["default"]


def test_a_perplexity_is_derived_from_the_average_of_the_loss() -> None:
    """As fairseq's criterions write it."""
    with metrics.aggregate() as agg:
        metrics.log_scalar("nll_loss", 3.0, 10, round=3)
        metrics.log_scalar("nll_loss", 1.0, 10, round=3)
        metrics.log_derived("ppl", lambda meters: 2 ** meters["nll_loss"].avg)
    assert agg.get_smoothed_values() == {"nll_loss": 2.0, "ppl": 4.0}
    meter = agg["nll_loss"]
    assert isinstance(meter, metrics.AverageMeter)
    assert (meter.avg, meter.sum, meter.count, meter.val) == (2.0, 40.0, 20, 1.0)


def test_an_accuracy_is_derived_from_two_sums() -> None:
    """As label_smoothed_cross_entropy writes it."""
    with metrics.aggregate() as agg:
        for correct, total in ((3, 10), (5, 10)):
            metrics.log_scalar("total", total)
            metrics.log_scalar("n_correct", correct)
            metrics.log_derived(
                "accuracy",
                lambda meters: (
                    round(meters["n_correct"].sum * 100.0 / meters["total"].sum, 3)
                    if meters["total"].sum > 0
                    else float("nan")
                ),
            )
    assert agg.get_smoothed_value("accuracy") == 40.0


def test_a_scalar_that_is_none_makes_the_meter_and_changes_nothing() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("loss", None)
        assert "loss" in agg
        # narrower here than its type says
        assert agg["loss"].val is None  # type: ignore[attr-defined]
        metrics.log_scalar("loss", 2.0)
        metrics.log_scalar("loss", None, 100)
    assert agg.get_smoothed_values() == {"loss": 2.0}


def test_a_sum_is_logged() -> None:
    with metrics.aggregate() as agg:
        for value in (1.25, 2.5):
            metrics.log_scalar_sum("examples", value, 7, 1)
    assert agg.get_smoothed_values() == {"examples": 3.8}
    # narrower here than its type says
    assert agg["examples"].sum == 3.75  # type: ignore[attr-defined]


def test_a_stopwatch_calls_its_prehook_before_it_stops() -> None:
    called = []
    with metrics.aggregate() as agg:
        metrics.log_stop_time("wall", prehook=lambda: called.append("never started"))
        metrics.log_start_time("wall", priority=790, round=2)
        metrics.log_stop_time("wall", weight=2, prehook=lambda: called.append("stopping"))
    assert called == ["stopping", "stopping"]  # in `default` too
    watch = agg["wall"]
    assert isinstance(watch, metrics.StopwatchMeter)
    assert (watch.count, watch.avg) == (2, watch.sum / 2)


class Longest:
    """A meter as fairseq's users write them; not one of ours."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.longest = 0

    def update(self, text: str, times: int = 1) -> None:
        self.longest = max(self.longest, len(text) * times)

    def state_dict(self) -> dict[str, Any]:
        return {"longest": self.longest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.longest = state["longest"]

    @property
    def smoothed_value(self) -> float:
        return self.longest


def test_a_meter_written_for_fairseq_is_taken() -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_custom(Longest, "longest", "four")
        metrics.log_custom(Longest, "longest", "ab", times=3)
    assert agg.get_smoothed_values() == {"longest": 6}
    # narrower here than its type says
    assert agg["longest"].longest == 6  # type: ignore[attr-defined]
    state = metrics.state_dict()
    metrics.reset()
    metrics.load_state_dict(state)
    with metrics.aggregate("train") as agg:
        metrics.log_custom(Longest, "longest", "x")
    assert agg.get_smoothed_values() == {"longest": 6}


def test_meters_are_found_as_in_fairseq() -> None:
    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.0)
    meters = metrics.get_meters("train")
    assert isinstance(meters, metrics.MetersDict)
    assert meters.get_smoothed_values() == {"loss": 2.0}
    assert metrics.get_meters("nowhere") is None
    assert metrics.get_meter("nowhere", "loss") is None
    assert metrics.get_meter("train", "nothing") is None
    with pytest.raises(KeyError):
        metrics.get_smoothed_value("train", "nothing")
    with pytest.raises(KeyError):
        metrics.get_smoothed_values("nowhere")


def test_time_meters_count_events_per_second() -> None:
    meter = metrics.TimeMeter()
    meter.update()
    meter.update(2)
    assert meter.sum == 3
    assert 0 < meter.avg < math.inf


def test_meters_are_added_with_a_priority() -> None:
    agg = metrics.MetersDict()
    agg.add_meter("b", metrics.AverageMeter(), 2)
    agg.add_meter("a", metrics.SumMeter(), 1)
    assert list(agg) == ["a", "b"]
