"""What one process can show of the reduction; two real ranks are in tests/integration/test_metrics_ranks.py."""

import pytest

from sonde import metrics
from sonde.errors import SettingError
from sonde.metrics.ranks import Row, _agree


def test_without_other_ranks_it_is_a_copy() -> None:
    with metrics.aggregate("train") as train:
        metrics.log_scalar("loss", 0.5, weight=3, round=3, priority=4)
        metrics.log_custom(lambda: metrics.Quantile(0.9), "p90", 5.0)
        metrics.log_derived("double", lambda meters: 2 * meters["loss"].value)
        copy = metrics.over_ranks(train)
        assert copy.state_dict() == train.state_dict()
        assert copy.get_smoothed_values() == train.get_smoothed_values()
        metrics.log_scalar("loss", 100.0)
    assert copy.get_smoothed_value("loss") == 0.5
    assert copy.get_smoothed_value("double") == 1.0
    assert copy.name == "train"


def _row(key: str, kind: str = "average") -> Row:
    return {"key": key, "kind": kind, "priority": 10, "round": None, "added": 1, "highest": 0, "empty": {}}


def test_keys_come_in_the_order_of_rank_0_then_what_others_have_besides() -> None:
    agreed = _agree([[_row("b"), _row("a")], [_row("a"), _row("c")], []])
    assert [row["key"] for row in agreed] == ["b", "a", "c"]


def test_one_key_of_two_kinds_is_an_error() -> None:
    with pytest.raises(SettingError, match="'a' is of kind average on one rank, and of kind sum"):
        _agree([[_row("a")], [_row("a", "sum")]])
