import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from sonde import metrics
from sonde.errors import SettingError


class Product(metrics.Meter):
    """A meter somebody else wrote."""

    kind = "product"

    def __init__(self) -> None:
        self.product = 1.0

    def update(self, factor: float) -> None:
        self.product *= factor

    @property
    def smoothed_value(self) -> float:
        return self.product

    def reset(self) -> None:
        self.product = 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"product": self.product}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.product = state["product"]


def test_a_nan_is_shown_beside_the_average_of_the_finite_values() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("loss", 2.0)
        metrics.log_scalar("loss", math.nan)
        metrics.log_scalar("loss", 4.0)
        metrics.log_scalar("acc", 1.0)
    assert agg.get_smoothed_values() == {"loss": 3.0, "loss_nonfinite": 1, "acc": 1.0}


def test_a_key_that_has_no_data_is_not_shown() -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_scalar("loss", 2.0)
    agg.reset()
    assert agg.get_smoothed_values() == {}
    assert list(agg) == ["loss"]


def test_an_unknown_key_is_an_error_that_names_the_nearest() -> None:
    with metrics.aggregate() as agg:
        metrics.log_scalar("loss", 2.0)
    with pytest.raises(SettingError, match="did you mean 'loss'"):
        agg.get_smoothed_value("los")


def test_state_is_plain_json_and_restores_exactly() -> None:
    with metrics.aggregate("train") as agg:
        for step in range(1000):
            metrics.log_scalar("loss", 0.1 * step, weight=0.3, round=4, priority=3)
        metrics.log_scalar("loss", math.nan)
        metrics.log_custom(lambda: metrics.Quantile(0.95), "p95", 3.0)
    saved = json.dumps(agg.state_dict(), allow_nan=False)
    restored = metrics.Aggregator()
    restored.load_state_dict(json.loads(saved))
    assert restored.state_dict() == json.loads(saved)
    assert restored.get_smoothed_values() == agg.get_smoothed_values()
    assert restored["loss"].round == 4
    assert list(restored) == ["loss", "p95"]


def test_a_level_that_is_active_while_it_is_loaded_stays_connected() -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_scalar("loss", 1.0)
        state = agg.state_dict()
        metrics.log_scalar("loss", 5.0)
        metrics.log_scalar("other", 5.0)
        agg.load_state_dict(state)
        metrics.log_scalar("loss", 3.0)
    assert agg.get_smoothed_values() == {"loss": 2.0}
    assert metrics.get_smoothed_values("default") == {"loss": 3.0, "other": 5.0}


def test_a_meter_of_ones_own_comes_back_when_it_is_next_made() -> None:
    with metrics.aggregate("train") as agg:
        metrics.log_custom(Product, "p", 3.0)
        metrics.log_custom(Product, "p", 5.0)
    state = json.loads(json.dumps(agg.state_dict()))
    restored = metrics.Aggregator()
    restored.load_state_dict(state)
    assert restored.state_dict() == state
    restored.add_meter("p", Product())
    assert restored.get_smoothed_values() == {"p": 15.0}
    assert restored.state_dict() == state


def test_a_key_cannot_be_added_twice() -> None:
    agg = metrics.Aggregator()
    agg.add_meter("x", metrics.Sum())
    with pytest.raises(SettingError, match="new string"):
        agg.add_meter("x", metrics.Sum())


def test_a_state_of_version_0_1_is_read() -> None:
    state = {"total": [1e16, 1.0], "weight": [4.0], "nonfinite": 1, "latest": "nan"}
    row = {"key": "loss", "kind": "average", "priority": 10, "round": 3, "state": state}
    low_high = {"low": 1.0, "high": 3.0, "nonfinite": 0}
    quantile = {
        **row,
        "key": "p95",
        "kind": "quantile",
        "state": {**low_high, "q": 0.95, "buckets": [[2561, 1], [2657, 3]]},
    }
    agg = metrics.Aggregator()
    agg.load_state_dict({"meters": [row, quantile]})
    assert agg.get_smoothed_values() == {"loss": (1e16 + 1) / 4, "loss_nonfinite": 1, "p95": 3.0}


def test_a_level_equals_only_itself_and_is_a_mapping_of_its_meters() -> None:
    first = metrics.Aggregator("x")
    second = metrics.Aggregator("x")
    assert first != second
    assert len({first, second}) == 2
    first.add_meter("late", metrics.Sum(), 50)
    first.add_meter("early", metrics.Sum(), 5)
    assert (list(first), len(first), "early" in first) == (["early", "late"], 2, True)
