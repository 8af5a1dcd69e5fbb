"""Autocast around the whole loop is told; autocast around a step, or in it, is not."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder


def autocast(*, is_on: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if is_on else nullcontext()


@pytest.mark.parametrize(
    ("place", "is_told"), [("loop", True), ("step", False), ("forward", False), ("", False)]
)
def test_casts_that_autocast_keeps_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str, is_told: bool
) -> None:
    torch.manual_seed(1)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        with autocast(is_on=place == "forward"):
            scores = model(batch)
        loss = F.mse_loss(scores.float(), torch.ones(4, 3))
        loss.backward()
        optimizer.step()
        return loss

    with Recorder(tmp_path, model, optimizer) as recorder, autocast(is_on=place == "loop"):
        for batch in torch.randn(10, 4, 6):
            with autocast(is_on=place == "step"):
                recorder.step(step, batch)
    told = [message for message in caplog.messages if "casts of the weights" in message]
    assert len(told) == int(is_told)
