"""What the loops of control flow share: their list, a model, a batch and a plain step."""

from collections.abc import Callable
from typing import Any

import torch
from loops.context import Context, network
from torch import Tensor, nn

Loop = Callable[[Context], None]
CONTROLS: dict[str, Loop] = {}


def loop(name: str) -> Callable[[Loop], Loop]:
    def add(function: Loop) -> Loop:
        CONTROLS[name] = function
        return function

    return add


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def inputs(context: Context, step: int) -> Tensor:
    return torch.randn(6, 8) * context.scale(step)


def simple_step(recorder: Any, model: nn.Module, optimizer: Any) -> Callable[[Tensor], Tensor]:
    def train_step(batch: Tensor) -> Tensor:
        loss = model(batch).square().mean()
        recorder.loss(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step
