from pathlib import Path

import pytest

from sonde.log import JSONStreamBackend, Logger, Verbosity, read, read_series


@pytest.mark.parametrize("prefix", ["", "DLLL "])
def test_a_nested_value_is_a_metric_with_dots_in_its_name(tmp_path: Path, prefix: str) -> None:
    with Logger(
        [JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json", prefix=prefix)]
    ) as logger:
        for step in range(3):
            logger.log(step, {"eval": {"loss": float(step)}, "train.loss": 1.0, "shape": [1, 2]})
    assert read_series(tmp_path / "a.json", "eval.loss").values.tolist() == [0.0, 1.0, 2.0]
    assert read(tmp_path / "a.json").series("eval.loss").values.tolist() == [0.0, 1.0, 2.0]
    assert read_series(tmp_path / "a.json", "train.loss").values.tolist() == [1.0, 1.0, 1.0]
