import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import MissingDependency
from sonde.log import Logger, TensorBoardBackend, Verbosity

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.slow  # importing TensorBoard takes a second or two


def load(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_the_curves_back(tmp_path: Path) -> None:
    with Logger([TensorBoardBackend(Verbosity.DEFAULT, tmp_path)]) as logger:
        logger.metadata("loss", {"unit": "nats"})
        logger.info({"lr": 0.1})
        for epoch in range(2):
            for iteration in range(3):
                logger.log(
                    (epoch, iteration),
                    {"loss": epoch + iteration / 4, "shape": [1, 2], "eval": {"bleu": 30}},
                )
        logger.log((), {"nothing": "words"})
    assert logger.num_lost == 0
    events = load(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["eval/bleu", "loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [
        (0, 0.0),
        (1, 0.25),
        (2, 0.5),
        (3, 1.0),
        (4, 1.25),
        (5, 1.5),
    ]
    assert events.Tensors("info")[0].tensor_proto.string_val == [b'{"lr":0.1}']
    assert events.Tensors("metadata/loss")[0].tensor_proto.string_val == [b'{"unit":"nats"}']


def test_events_are_on_the_disk_without_a_close(tmp_path: Path) -> None:
    logger = Logger([TensorBoardBackend(Verbosity.DEFAULT, tmp_path)])
    logger.log(7, {"loss": 0.5})
    logger.flush()
    assert [(e.step, e.value) for e in load(tmp_path).Scalars("loss")] == [(7, 0.5)]
    logger.close()


def test_other_ranks_make_no_file(tmp_path: Path) -> None:
    with Logger([TensorBoardBackend(Verbosity.DEFAULT, tmp_path / "tb")], rank=1) as logger:
        logger.log(1, {"loss": 0.5})
    assert not (tmp_path / "tb").exists()


def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependency, match="tensorboard"):
        TensorBoardBackend(Verbosity.DEFAULT, tmp_path)
