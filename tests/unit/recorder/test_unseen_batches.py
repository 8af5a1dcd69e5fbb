"""Loops without a step function that call parts of their model: nothing is seen of a batch but its
loss, and that is recorded.
"""

import logging
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.spikes.spike_log import read_spikes

NUM_STEPS = 60
BROKEN_STEP = 50


def train(run: Path, *, tells_loss: bool) -> list[float]:
    """Train two layers that nobody calls together, and return the losses."""
    torch.manual_seed(4)
    model = nn.ModuleDict({"left": nn.Linear(6, 3), "right": nn.Linear(6, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with Recorder(run, model, optimizer) as recorder:
        for step in range(1, NUM_STEPS + 1):
            rows = torch.randn(8, 6)
            if step == BROKEN_STEP:
                rows[2] = math.nan
            loss: Tensor = (model["left"](rows) - model["right"](rows)).square().mean()
            if tells_loss:
                recorder.loss(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tells_loss", [True, False])
def test_every_update_is_recorded_with_its_loss(tmp_path: Path, tells_loss: bool) -> None:
    losses = train(tmp_path / "run", tells_loss=tells_loss)
    recorded = [step.loss for step in read_steps(tmp_path / "run").by_number.values()]
    assert len(recorded) == NUM_STEPS
    before = BROKEN_STEP - 1
    assert recorded[:before] == losses[:before]
    assert all(math.isnan(loss) for loss in recorded[before:])


@pytest.mark.parametrize("tells_loss", [True, False])
def test_numbers_that_are_not_finite_are_an_event(tmp_path: Path, tells_loss: bool) -> None:
    train(tmp_path / "run", tells_loss=tells_loss)
    spikes = read_spikes(tmp_path / "run").spikes
    assert [spike.event.first_step for spike in spikes] == [BROKEN_STEP]


def test_the_backward_pass_of_another_model_begins_nothing(tmp_path: Path) -> None:
    watched = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(watched.parameters(), lr=0.01)
    other = nn.Linear(3, 1)
    with Recorder(tmp_path / "run", watched, optimizer):
        for _ in range(5):
            other(torch.randn(4, 3)).mean().backward()
    assert not read_steps(tmp_path / "run").by_number


def test_predictions_between_steps_are_no_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sonde")
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []

    def train_step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), torch.arange(9) % 3)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    with Recorder(tmp_path / "run", model, optimizer) as recorder:
        for _ in range(10):
            batch = torch.randn(9, 6)
            model(batch)  # in training mode and with gradients
            recorder.step(train_step, batch)
    assert [step.loss for step in read_steps(tmp_path / "run").by_number.values()] == losses
    assert "loss, gradient norm, rows;" in caplog.text
