import subprocess
import sys

import pytest

from sonde import metrics


def test_logging_numbers_needs_no_torch() -> None:
    program = """
import sys
from sonde import metrics
with metrics.aggregate("train") as agg:
    metrics.log_scalar("loss", 1.5)
    metrics.log_speed("tokens/s", 3)
    metrics.log_custom(metrics.Quantile, "q", 3)
assert agg.get_smoothed_value("loss") == 1.5
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there_and_unknown_ones_are_not() -> None:
    for name in dir(metrics):
        assert getattr(metrics, name) is not None
    assert {"log_scalar", "AverageMeter", "over_ranks"} <= set(dir(metrics))
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(metrics, "no_such_name")  # noqa: B009  a stub has no such name
