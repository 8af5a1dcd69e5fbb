"""Gradients that are clipped by value while a scaler still multiplies them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder


@pytest.mark.slow
@pytest.mark.parametrize(("unscales_first", "status"), [(False, "wrong"), (True, "fine")])
def test_clipping_by_value_before_unscaling_is_named(
    tmp_path: Path, unscales_first: bool, status: str
) -> None:
    torch.manual_seed(0)
    clip = nn.utils.clip_grad_value_
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

    def train_step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(batch).square().mean()
        scaler.scale(loss).backward()
        if unscales_first:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    with Recorder(tmp_path, model, optimizer, scaler=scaler) as recorder:
        report = recorder.check([torch.randn(8, 6) for _ in range(8)], train_step)
    found = next(result for result in report.results if result.name == "clipped_scaled")
    assert found.status == status
    assert nn.utils.clip_grad_value_ is clip
