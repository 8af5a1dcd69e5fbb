import json

import pytest

from sonde import metrics
from sonde.errors import SettingError


def test_meters_are_found_by_name_and_key() -> None:
    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.0)
    assert isinstance(metrics.get_meter("train", "loss"), metrics.Average)
    assert metrics.get_meter("train", "nothing") is None


def test_an_unknown_aggregator_is_an_error_when_its_values_are_read_and_not_when_it_is_reset() -> (
    None
):
    with metrics.aggregate("train"):
        pass
    with pytest.raises(SettingError, match="did you mean 'train'"):
        metrics.get_smoothed_values("trian")
    metrics.reset_meters("nowhere")
    metrics.reset_meter("nowhere", "loss")
    metrics.reset_meter("train", "nothing")


def test_one_meter_can_be_reset_alone() -> None:
    with metrics.aggregate("train"):
        metrics.log_scalar("a", 1)
        metrics.log_scalar("b", 1)
        metrics.reset_meter("train", "a")
        metrics.log_scalar("a", 3)
        metrics.log_scalar("b", 3)
    assert metrics.get_smoothed_values("train") == {"a": 3, "b": 2}
    assert metrics.get_smoothed_values("default") == {"a": 2, "b": 2}


def test_the_whole_state_goes_through_json_and_what_it_does_not_know_is_emptied() -> None:
    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.0)
    saved = json.loads(json.dumps(metrics.state_dict(), allow_nan=False))
    with metrics.aggregate("train"), metrics.aggregate("later"):
        metrics.log_scalar("loss", 100.0)
        metrics.load_state_dict(saved)
        assert metrics.get_smoothed_values("later") == {}
        metrics.log_scalar("loss", 4.0)
    assert (
        metrics.get_smoothed_values("train")
        == metrics.get_smoothed_values("default")
        == {"loss": 3.0}
    )
    assert metrics.get_smoothed_values("later") == {"loss": 4.0}
