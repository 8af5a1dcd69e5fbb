"""Loops that write where torch does not show it, or keep a state where one does not look for it."""

import random
import threading
from typing import Any

import numpy as np
import torch
from loops.context import NUM_STEPS, Context, network
from loops.control import inputs, loop, parts
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def run(context: Context, recorder: Any, train_step: Any) -> None:
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


def with_change(context: Context, change: Any) -> None:
    """Train with a change of the model at the beginning of each step; it returns a factor."""
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        factor = change(model)
        recorder.loss(model(batch).square().mean() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("weights are written through numpy")
def through_numpy(context: Context) -> None:
    def change(model: Any) -> float:
        numbers = model[0].weight.detach().numpy()
        np.clip(numbers, -0.5, 0.5, out=numbers)
        numbers *= 0.99
        return 1.0

    with_change(context, change)


@loop("weights are written by operations of torch.ops")
def by_operations(context: Context) -> None:
    def change(model: Any) -> float:
        with torch.no_grad():
            torch.ops.aten.mul_.Scalar(model[0].weight, 0.99)
            torch.ops.aten.mul_(model[0].bias, 0.99)
        return 1.0

    with_change(context, change)


@loop("weights are written by a script")
def by_script(context: Context) -> None:
    shrink = torch.jit.script(_shrink)

    def change(model: Any) -> float:
        with torch.no_grad():
            shrink(model[0].weight)
        return 1.0

    with_change(context, change)


def _shrink(weight: Tensor) -> None:
    weight.mul_(0.99)


@loop("weights are written in a backward before the loss")
def in_backward(context: Context) -> None:
    model, optimizer = parts()
    first = next(model.parameters())

    class Shrinks(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            first.data.mul_(0.999)
            return gradient

    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        Shrinks.apply(model(batch)).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("numbers from a low-discrepancy sequence")
def low_discrepancy(context: Context) -> None:
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=3)
    with_change(context, lambda _: 1 + 0.1 * float(engine.draw(1)))


@loop("numbers of the operating system")
def of_the_system(context: Context) -> None:
    source = random.SystemRandom()
    with_change(context, lambda _: 1.0 if source.random() < 2 else 0.0)


@loop("a loader with its own generator is begun anew in each step")
def loader_anew(context: Context) -> None:
    rows = TensorDataset(torch.randn(50, 1))
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(rows, 6, shuffle=True, generator=generator)
    with_change(context, lambda _: 1 + 0.1 * float(next(iter(loader))[0].mean()))


@loop("attributes of a weight")
def attributes_of_a_weight(context: Context) -> None:
    def change(model: Any) -> float:
        weight = model[0].weight
        weight.count = getattr(weight, "count", 0) + 1
        weight.average = 0.9 * getattr(weight, "average", 0.0) + 0.1 * weight.detach()
        return 1 + 0.01 * weight.count + float(weight.average.mean())

    with_change(context, change)


class Private:
    __slots__ = ("__count",)

    def __init__(self) -> None:
        self.__count = 0

    def next(self) -> int:
        self.__count += 1
        return self.__count


@loop("a private slot")
def private_slot(context: Context) -> None:
    counter = Private()
    with_change(context, lambda _: 1 + 0.01 * counter.next())


class Grows:
    """Makes each attribute that is asked for."""

    def __getattr__(self, name: str) -> int:
        self.__dict__[name] = 0
        return 0


class Refuses:
    """Raises another error than usual for what it does not have."""

    def __init__(self) -> None:
        self.__dict__["values"] = {"count": 0}

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


@loop("attributes made or refused in one's own way")
def own_attributes(context: Context) -> None:
    grows = Grows()
    refuses = Refuses()

    def change(model: Any) -> float:
        refuses.values["count"] += 1
        return 1 + 0.01 * float(refuses.count) + 0.001 * len(vars(grows))

    with_change(context, change)


@loop("another training in another thread")
def beside(context: Context) -> None:
    model, optimizer = parts()
    other = nn.Linear(8, 4)
    its_optimizer = torch.optim.SGD(other.parameters(), 1e-2)
    recorder = context.record(model, optimizer)
    context.hashed.append(other)
    failures: list[BaseException] = []

    def train_step(batch: Tensor) -> None:
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    def train() -> None:
        generator = torch.Generator().manual_seed(3)
        try:
            for _ in range(2000):
                other(torch.randn(6, 8, generator=generator)).square().mean().backward()
                its_optimizer.step()
                its_optimizer.zero_grad()
        except BaseException as error:  # noqa: BLE001  whatever ends it
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    run(context, recorder, train_step)
    thread.join()
    assert not failures, failures


@loop("two recorded trainings in two threads")
def two_threads(context: Context) -> None:
    failures: list[BaseException] = []

    def train(model: nn.Module, optimizer: Any, recorder: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def train_step(batch: Tensor) -> None:
            recorder.loss(model(batch).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

        try:
            for step in range(1, NUM_STEPS + 1):
                batch = torch.randn(6, 8, generator=generator)
                recorder.step(train_step, batch * context.scale(step))
        except BaseException as error:  # noqa: BLE001  whatever ends it
            failures.append(error)

    threads = []
    for seed, run_name in enumerate(("run", "other")):
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        recorder = context.record(model, optimizer, run=run_name)
        given = (model, optimizer, recorder, seed)
        threads.append(threading.Thread(target=train, args=given))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert {recorder.num_updates for recorder in context.recorders} <= {NUM_STEPS}


@loop("hooks of the model are cleared under way")
def hooks_cleared(context: Context) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.inner(x).square().mean()}

    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)
    context.num_updates = 29
    context.said = "no loss was seen"

    def train_step(batch: Tensor) -> None:
        model(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        if step == 30:
            model._forward_hooks.clear()
            model._forward_pre_hooks.clear()
        recorder.step(train_step, inputs(context, step))
