import json
import math
from collections.abc import Mapping
from typing import Any, final

import pytest

from sonde import metrics
from sonde.errors import SettingError


@final
class Product(metrics.Meter):
    """A meter somebody else wrote."""

    kind = "product"

    def __init__(self) -> None:
        super().__init__(priority=50, round=None)
        self.product: float | None = None

    def update(self, factor: float) -> None:
        self.product = factor * (1.0 if self.product is None else self.product)

    @property
    def has_data(self) -> bool:
        return self.product is not None

    @property
    def value(self) -> float:
        return math.nan if self.product is None else self.product

    def reset(self) -> None:
        self.product = None

    def fresh(self) -> "Product":
        return Product()

    def parts(self) -> metrics.Parts:
        return metrics.Parts(latest=self.product)

    def add_parts(self, parts: metrics.Parts) -> None:
        if parts.latest is not None:
            self.update(parts.latest)

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
    assert list(agg.meters) == ["loss"]


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
    meter = restored.get_meter("loss")
    assert meter is not None
    assert (meter.round, meter.priority) == (4, 3)


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


def test_whoever_reads_needs_only_the_small_interface() -> None:
    def report(readings: metrics.Readings) -> str:
        return f"{readings.name}: {readings.get_smoothed_values()} {readings.get_smoothed_value('loss')}"

    with metrics.aggregate("train") as agg:
        metrics.log_scalar("loss", 2.0)
    assert report(agg) == "train: {'loss': 2.0} 2.0"
    assert report(metrics.over_ranks(agg)) == "train: {'loss': 2.0} 2.0"
