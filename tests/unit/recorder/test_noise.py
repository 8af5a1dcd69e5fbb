"""A loss that jumps for no visible reason is recorded, and told only if it is more than noise."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder
from sonde.spikes.spike_log import read_spikes

NUM_STEPS = 120
ODD_STEP = 100


def told_steps(
    run: Path, caplog: pytest.LogCaptureFixture, *, num_rows: int, factor: float
) -> list[str]:
    """Train a model whose loss is about 1; at one step the batch has so many rows, and its loss is
    larger by a factor. Return what is said of that step.
    """
    torch.manual_seed(2)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    noise = torch.Generator().manual_seed(3)

    with Recorder(run, model, optimizer) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = ((model(batch[0]) - batch[1]) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        for step in range(1, NUM_STEPS + 1):
            size = num_rows if step == ODD_STEP else 16
            scale = factor**0.5 if step == ODD_STEP else 1.0
            inputs = torch.randn(size, 6, generator=noise)
            errors = scale + 0.05 * torch.randn(size, 1, generator=noise)
            recorder.step(train_step, (inputs, model(inputs).detach() + errors))
    assert ODD_STEP in [spike.event.first_step for spike in read_spikes(run).spikes]
    return [message for message in caplog.messages if message.startswith(f"step {ODD_STEP}:")]


def test_a_batch_as_large_as_others_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert told_steps(tmp_path / "run", caplog, num_rows=16, factor=3.0)


def test_a_much_smaller_batch_is_only_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not told_steps(tmp_path / "run", caplog, num_rows=3, factor=3.0)


def test_a_loss_that_rises_by_little_is_only_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not told_steps(tmp_path / "run", caplog, num_rows=16, factor=1.2)
