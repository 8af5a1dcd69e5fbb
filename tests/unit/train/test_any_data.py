"""A torch DataLoader as training data, and a task that returns a mean and a count."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import Numbers, Regression, weights
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, TensorDataset

from sonde.errors import SettingError
from sonde.records.journal import read_steps
from sonde.run import Run
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput, as_training_data, moved
from sonde.train.trainer import Trainer


class InOrder(Sampler[int]):
    """A sampler that knows where it is."""

    def __init__(self) -> None:
        self.at = 0
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while self.at < 12:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def __len__(self) -> int:
        return 12

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Pairs(Regression):
    """Takes what a DataLoader of a TensorDataset gives: a list of tensors."""

    def compute(self, batch: Any) -> Any:
        rows, counts = batch
        assert len(counts) == len(rows)
        output = super().compute(rows)
        return output.loss_sum / output.weight, output.weight


def make(run: Run | None, sampler: Any) -> tuple[Trainer, Regression]:
    rows = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(rows, torch.ones(12)), batch_size=2, sampler=sampler)
    task = Pairs()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
    trainer = Trainer(
        task,
        loader,
        optimizer,
        schedule=Schedule(schedule="constant", lr=0.01),
        run=run,
        settings=TrainerSettings(log_interval=1),
    )
    return trainer, task


def test_a_loader_whose_sampler_knows_its_position_resumes_exactly(tmp_path: Path) -> None:
    with Run(tmp_path / "whole") as run:
        trainer, whole = make(run, InOrder())
        trainer.train(stop=StopWhen(max_updates=10))
    sampler = InOrder()
    for end in (4, 10):
        sampler = InOrder()
        with Run(tmp_path / "resumed") as run:
            trainer, resumed = make(run, sampler)
            trainer.train(stop=StopWhen(max_updates=end))
    assert weights(whole) == weights(resumed)
    assert [step.epoch for step in read_steps(tmp_path / "resumed").by_number.values()] == [
        1
    ] * 6 + [2] * 4
    assert sampler.epochs == [0, 1]


def test_a_loader_that_does_not_know_its_position_is_told_of_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer, _ = make(None, None)
    assert "DataLoader does not tell its position" in caplog.text
    assert trainer.train(stop=StopWhen(max_epochs=2)) == "max_epochs: 2 epochs were completed"


def test_data_with_a_state_is_taken_as_it_is() -> None:
    numbers = Numbers()
    assert as_training_data(numbers) is numbers


def test_a_mean_and_a_count_train_as_a_sum_and_a_weight_do() -> None:
    trained = []
    for kind in (Regression, Means):
        task = kind()
        optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
        trainer = Trainer(
            task, Numbers(), optimizer, schedule=Schedule(schedule="constant", lr=0.01)
        )
        trainer.train(stop=StopWhen(max_updates=5))
        trained.append(weights(task))
    assert trained[0] == pytest.approx(trained[1], rel=1e-4)


class Means(Regression):
    def compute(self, batch: Tensor) -> Any:
        output: StepOutput = super().compute(batch)
        return output.loss_sum / output.weight, output.weight


def test_what_is_no_loss_is_refused_with_what_to_return() -> None:
    class Wrong(Regression):
        def compute(self, batch: Tensor) -> Any:
            return super().compute(batch).loss_sum

    task = Wrong()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.0)
    trainer = Trainer(task, Numbers(), optimizer, schedule=Schedule(schedule="constant", lr=0.01))
    with pytest.raises(SettingError, match="returned a Tensor"):
        trainer.train(stop=StopWhen(max_updates=1))


def test_batches_of_any_form_go_to_the_device() -> None:
    batch = {"x": [torch.ones(1), (torch.ones(2), "text")], "n": 3}
    on_meta = moved(batch, torch.device("meta"))
    assert on_meta["x"][0].is_meta
    assert on_meta["x"][1][0].is_meta
    assert (on_meta["x"][1][1], on_meta["n"]) == ("text", 3)
