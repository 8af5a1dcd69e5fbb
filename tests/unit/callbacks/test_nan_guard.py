"""NanGuard: names what is bad, stops what will not recover, and protects good checkpoints."""

import math
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tiny_training import Regression, make_trainer
from torch import Tensor

from sonde.callbacks.base import Callback, Order
from sonde.callbacks.context import Context
from sonde.callbacks.nan_guard import NanGuard, first_bad
from sonde.checkpoint.folder import CheckpointFolder
from sonde.compat.nemo.checkpoint import CheckpointCallback
from sonde.train.stopping import StopWhen


def test_the_first_bad_value_is_named() -> None:
    values = {"a": 1.0, "b": torch.tensor([1.0, math.inf]), "c": math.nan, "d": "text"}
    assert first_bad(values.items()) == "b"
    assert first_bad({"a": 1.0, "i": torch.tensor([1])}.items()) is None


class Spoiler:
    """Makes a number of batches NaN, from one on."""

    def __init__(self, first: int, num: int) -> None:
        self.first = first
        self.num = num
        self.number = 0

    def __call__(self, batch: Tensor) -> Tensor:
        self.number += 1
        return batch * math.nan if self.first <= self.number < self.first + self.num else batch


def train(task: Regression, *callbacks: Callback, updates: int = 12) -> str:
    trainer, _ = make_trainer(task=task)
    trainer.valid_data = None
    return trainer.train(stop=StopWhen(max_updates=updates), callbacks=callbacks)


def test_one_bad_batch_is_reported_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    task = Regression(Spoiler(3, 1))
    assert train(task, NanGuard(task.model)).startswith("max_updates")
    assert "step 3: loss is not finite" in caplog.text


def test_bug_a_nan_loss_never_stopped_or_looped_forever() -> None:
    task = Regression(Spoiler(3, 1000))
    reason = train(task, NanGuard(task.model, patience=4))
    assert reason == "a callback asked to stop: loss was not finite for 4 steps"


class Breaking(Callback):
    """Puts a NaN into the weights after the fourth update."""

    order: ClassVar[Order] = Order.EVALUATE

    def __init__(self, task: Regression) -> None:
        self.task = task

    def on_step_end(self, context: Context) -> None:
        if context.step == 4:
            with torch.no_grad():
                next(self.task.model.parameters())[0, 0] = math.nan


def test_checkpoints_of_bad_weights_do_not_push_good_ones_out(tmp_path: Path) -> None:
    task = Regression()
    saving = CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=2)
    reason = train(task, Breaking(task), NanGuard(task.model, weights_every=1), saving)
    assert reason == "a callback asked to stop: the weight 0.weight is not finite"
    folder = CheckpointFolder(tmp_path)
    assert folder.steps() == [2, 3, 4]
    assert {step: about.distrusted for step, about in folder.entries().items()} == {
        2: None,
        3: None,
        4: "the weight 0.weight is not finite",
    }
