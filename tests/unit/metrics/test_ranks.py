"""What one process can show of the reduction; two real ranks are in
tests/integration/test_metrics_ranks.py.
"""

from sonde import metrics


def test_without_other_ranks_it_is_a_copy() -> None:
    with metrics.aggregate("train") as train:
        metrics.log_scalar("loss", 0.5, weight=3, round=3, priority=4)
        metrics.log_custom(lambda: metrics.Quantile(0.9), "p90", 5.0)
        metrics.log_derived("double", lambda meters: 2 * meters["loss"].value, priority=1)
        copy = metrics.over_ranks(train)
        assert copy.state_dict() == train.state_dict()
        assert list(copy.get_smoothed_values().items()) == list(train.get_smoothed_values().items())
        metrics.log_scalar("loss", 100.0)
    assert copy.get_smoothed_value("loss") == 0.5
    assert copy.get_smoothed_value("double") == 1.0
    assert copy.name == "train"


def test_a_meter_written_for_fairseq_keeps_its_own_value() -> None:
    class Steps:
        """Has what fairseq's meters have, and is none of ours."""

        smoothed_value = 0

        def update(self, num: int) -> None:
            self.smoothed_value += num

        def reset(self) -> None:
            self.smoothed_value = 0

    with metrics.aggregate("train") as train:
        metrics.log_custom(Steps, "steps", 3)
        assert metrics.over_ranks(train).get_smoothed_values() == {"steps": 3}
