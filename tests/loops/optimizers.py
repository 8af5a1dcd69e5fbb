"""Optimizers of every kind, and what a loop does with them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Make = Callable[[nn.Module], Any]


class WithoutRate(torch.optim.Optimizer):
    """An optimizer whose groups have no `lr`."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"strength": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["strength"])


class RelativeStep(torch.optim.Optimizer):
    """As Adafactor with `lr=None`: the rate is derived from the step and stands in no group."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None, "relative_step": True})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.num_steps += 1
        rate = min(1e-2, self.num_steps**-0.5)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-rate)


def _empty_first_group(model: nn.Module) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": []}, {"params": list(model.parameters())}]
    return torch.optim.AdamW(groups, lr=1e-2)


def _rate_tensor(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    first, *others = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "lr": 1e-3}, {"params": others}]
    return torch.optim.SGD(groups, lr=1e-2, momentum=0.9)


def _some_frozen(model: nn.Module) -> torch.optim.Optimizer:
    next(model.parameters()).requires_grad_(False)
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2),
    "fused AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
    "Adafactor of torch": lambda model: torch.optim.Adafactor(model.parameters()),
    "without lr": lambda model: WithoutRate(model.parameters()),
    "relative step": lambda model: RelativeStep(model.parameters()),
    "empty first group": _empty_first_group,
    "rate in a tensor": _rate_tensor,
    "two groups": _two_groups,
    "some parameters frozen": _some_frozen,
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=1e-2),
    "maximize": lambda model: torch.optim.SGD(model.parameters(), lr=1e-6, maximize=True),
}
