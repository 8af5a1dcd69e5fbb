"""A step of the optimiser: the same as torch's, and whoever wants to notice it does."""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from sonde.train.step import optimizer_step


def make(kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model, kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]  # every optimizer tried takes it


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_step_moves_the_weights_exactly_as_torch_does(kind: type[torch.optim.Optimizer]) -> None:
    model, optimizer = make(kind)
    twin = copy.deepcopy(model)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        theirs.grad = ours.grad
    other = kind(twin.parameters(), lr=0.1)  # type: ignore[call-arg]  # every optimizer tried takes it
    step = optimizer_step(optimizer)
    for _ in range(3):
        step()
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert not any(parameter.grad_fn for parameter in model.parameters())


def test_an_unwatched_step_skips_the_wrapper_and_a_watched_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = make()
    step = optimizer_step(optimizer)
    ranges: list[str] = []

    def record(name: str) -> contextlib.AbstractContextManager[None]:
        ranges.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.autograd.profiler, "record_function", record)
    step()
    assert ranges == []
    optimizer.register_step_post_hook(lambda *_: None)
    step()
    assert len(ranges) == 1


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_the_optimiser_are_called_even_if_registered_later(register: str) -> None:
    _, optimizer = make()
    step = optimizer_step(optimizer)
    step()
    called: list[int] = []
    getattr(optimizer, register)(lambda *_: called.append(1))
    step()
    assert called == [1]


@pytest.mark.parametrize(
    "register",
    [torch_optimizer.register_optimizer_step_pre_hook, torch_optimizer.register_optimizer_step_post_hook],
)
def test_hooks_of_all_optimisers_are_called(register: Callable[[Callable[..., None]], Any]) -> None:
    _, optimizer = make()
    called: list[int] = []
    handle = register(lambda *_: called.append(1))
    try:
        optimizer_step(optimizer)()
    finally:
        handle.remove()
    assert called == [1]


def test_a_step_put_on_the_object_is_the_one_that_is_taken() -> None:
    _, optimizer = make()
    taken: list[int] = []
    optimizer.step = lambda *_: taken.append(1)  # type: ignore[assignment,method-assign]  # made for this case
    optimizer_step(optimizer)()
    assert taken == [1]


def test_a_class_that_decorates_its_step_keeps_its_decoration() -> None:
    taken: list[int] = []
    make()  # torch puts its wrapper on the class when the first one is made
    inherited: Any = torch.optim.SGD.step

    @functools.wraps(inherited)  # copies the marks of torch's own wrapper along with the name
    def counted(self: torch.optim.SGD) -> None:
        taken.append(1)
        inherited(self)

    kind: Any = type("Counting", (torch.optim.SGD,), {"step": counted})
    _, optimizer = make(kind)
    optimizer_step(optimizer)()
    assert taken == [1]


def test_a_profiler_sees_the_step() -> None:
    _, optimizer = make()
    with torch.autograd.profiler.profile() as profiler:
        optimizer_step(optimizer)()
    assert any("Optimizer.step#SGD.step" in event.name for event in profiler.function_events or ())
