"""The loss logger: the manual's examples, its order, and the bugs it does not share."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import make_trainer

from sonde.compat.nemo.evaluator import EvaluatorCallback
from sonde.compat.nemo.loss_logger import SimpleLossLoggerCallback
from sonde.errors import SettingError
from sonde.train.stopping import StopWhen


class Writer:
    """Stands for a SummaryWriter, and notes what it is told."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.num_closed = 0

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert not self.num_closed, "written after it was closed"
        assert isinstance(value, (int, float))
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.num_closed += 1

    def steps(self, tag: str) -> list[int]:
        return [step for name, _, step in self.scalars if name == tag]


def train(*callbacks: Any, updates: int = 8) -> None:
    make_trainer()[0].train(stop=StopWhen(max_updates=updates), callbacks=callbacks)


def test_the_manuals_example_prints_and_writes(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer()
    callback = SimpleLossLoggerCallback(
        tensors=["loss", "mean"],
        # as the manual writes it
        print_func=lambda x: logging.info(f"Train Loss: {x[0].item():.3f}"),  # noqa: G004, LOG015
        get_tb_values=lambda x: [["loss", x[0]], ("mean", x[1])],
        step_freq=3,
        tb_writer=writer,
    )
    with caplog.at_level(logging.INFO):
        train(callback)
    assert sum("Train Loss" in message for message in caplog.messages) == 3
    assert (
        writer.steps("loss") == writer.steps("mean") == writer.steps("misc/step_time") == [1, 3, 6]
    )
    assert writer.steps("misc/epoch_time") == [6]
    assert any("Finished epoch 1" in message for message in caplog.messages)
    assert writer.num_closed == 1


def test_bug_a_python_float_has_no_item_and_crashed_the_writer() -> None:
    writer = Writer()
    train(
        SimpleLossLoggerCallback(
            "loss", get_tb_values=lambda x: [("half", x[0].item() / 2)], tb_writer=writer
        )
    )
    assert writer.steps("half") == [1]


def test_both_tb_functions_are_called_when_both_are_given() -> None:
    writer = Writer()
    seen = []
    callback = SimpleLossLoggerCallback(
        ["losses"],
        get_tb_values=lambda x: [("max", x[0].max())],
        log_to_tb_func=lambda w, values, step: seen.append((w is writer, values[0].ndim, step)),
        step_freq=4,
        tb_writer=writer,
    )
    train(callback)
    assert writer.steps("max") == [1, 4, 8]
    assert seen == [(True, 1, 1), (True, 1, 4), (True, 1, 8)]


@pytest.mark.parametrize("name", ["get_tb_values", "log_to_tb_func"])
def test_a_tb_function_without_a_writer_is_not_called_as_in_nemo(name: str) -> None:
    def fail(*_: object) -> list[Any]:
        raise AssertionError("called without a writer")

    train(SimpleLossLoggerCallback(["loss"], step_freq=1, **{name: fail}))


def test_bug_the_writer_was_closed_before_the_evaluators_last_values() -> None:
    writer = Writer()
    logger = SimpleLossLoggerCallback(["loss"], tb_writer=writer)
    evaluator = EvaluatorCallback(
        ["mean"], lambda _values, _kept: None, lambda _: {"m": 1.0}, writer, eval_step=3
    )
    train(logger, evaluator)
    assert writer.steps("m") == [0, 3, 6, 8]
    assert writer.num_closed == 1


def test_bug_only_one_logger_was_allowed() -> None:
    writer = Writer()
    train(
        *(
            SimpleLossLoggerCallback(
                ["loss"], get_tb_values=lambda x: [("a", x[0])], tb_writer=writer
            )
            for _ in range(2)
        )
    )
    assert writer.steps("a") == [1, 1]
    assert writer.num_closed == 1


def test_a_handle_with_a_name_stands_for_the_value() -> None:
    class Handle:
        name = "mean"

    seen: list[torch.Tensor] = []
    # a stand-in for a tensor
    train(SimpleLossLoggerCallback(Handle(), print_func=lambda x: seen.append(x[0]), step_freq=8))  # type: ignore[arg-type]
    assert [value.ndim for value in seen] == [0, 0]


def test_a_name_that_the_task_does_not_give_is_reported_and_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(SimpleLossLoggerCallback(["lss"]))
    assert "did you mean 'loss'" in caplog.text


@pytest.mark.parametrize("step_freq", [0, -1, 2.5])
def test_a_frequency_that_is_none_is_refused(step_freq: Any) -> None:
    with pytest.raises(SettingError, match="step_freq"):
        SimpleLossLoggerCallback(["loss"], step_freq=step_freq)


def test_a_real_summary_writer_is_fed(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = tensorboard.SummaryWriter(str(tmp_path))
    train(
        SimpleLossLoggerCallback(
            ["loss"], get_tb_values=lambda x: [("loss", x[0])], step_freq=4, tb_writer=writer
        )
    )
    events = reading.EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 4, 8]
