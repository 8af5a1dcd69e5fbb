"""Evaluation, closures, several optimizers, and loops that change under way."""

import contextlib
from typing import Any

import torch
from loops.context import NUM_STEPS, Context, network
from loops.control import inputs, loop, parts, simple_step
from torch import Tensor, nn


@loop("evaluation in the step")
def evaluation_inside(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train = simple_step(recorder, model, optimizer)

    def train_step(batch: Tensor) -> Tensor:
        loss = train(batch)
        model.eval()
        with torch.no_grad():
            model(batch).square().mean()
        model.train()
        return loss

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("evaluation between steps, with gradients")
def evaluation_between(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
        if step % 5 == 0:
            model.eval()
            model(inputs(context, 1)).square().mean()
            model.train()


@loop("training in eval mode")
def eval_mode(context: Context) -> None:
    model, optimizer = parts()
    model.eval()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("no step function: hooks alone")
def hooks_alone(context: Context) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).square().mean()

    model = WithLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    context.record(model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        model(inputs(context, step)).backward()
        optimizer.step()
        optimizer.zero_grad()


@loop("closure")
def closure(context: Context) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=4)
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = recorder.loss(model(batch).square().mean())
            loss.backward()
            return loss

        optimizer.step(evaluate)

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("two optimizers")
def two_optimizers(context: Context) -> None:
    model = network()
    head = nn.Linear(4, 1)
    first = torch.optim.AdamW(model.parameters(), lr=1e-2)
    second = torch.optim.SGD(head.parameters(), lr=1e-2)
    recorder = context.record(nn.Sequential(model, head), first, second=second)

    def train_step(batch: Tensor) -> None:
        recorder.loss(head(model(batch)).square().mean()).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("two optimizers in turns")
def optimizers_in_turns(context: Context) -> None:
    model = network()
    other = network()
    first = torch.optim.AdamW(model.parameters(), lr=1e-2)
    second = torch.optim.AdamW(other.parameters(), lr=1e-2)
    recorder = context.record(model, first, other=other, second=second)
    context.hashed.append(other)
    context.num_updates = NUM_STEPS // 2

    def train_step(item: tuple[int, Tensor]) -> None:
        number, batch = item
        network, optimizer = ((model, first), (other, second))[number % 2]
        recorder.loss(network(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, (step, inputs(context, step)))


@loop("optimizer made anew after unfreezing")
def made_anew(context: Context) -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    recorder = context.record(model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        if step == 21:
            model[0].requires_grad_(True)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def train_step(batch: Tensor, optimizer: Any = optimizer) -> None:
            recorder.loss(model(batch).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

        recorder.step(train_step, inputs(context, step))


@loop("the wrong optimizer is given")
def wrong_optimizer(context: Context) -> None:
    model, optimizer = parts()
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    recorder = context.record(model, other)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("a group added under way")
def group_added(context: Context) -> None:
    model = network()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=1e-2, momentum=0.9)
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        if step == 21:
            optimizer.add_param_group({"params": list(model[0].parameters())})
        recorder.step(train_step, inputs(context, step))


@loop("model replaced under way")
def model_replaced(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        if step == 31:
            model = network()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            context.hashed.append(model)

        def train_step(batch: Tensor, model: Any = model, optimizer: Any = optimizer) -> None:
            recorder.loss(model(batch).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

        recorder.step(train_step, inputs(context, step))
    context.num_updates = 30
    context.said = "no optimizer"


@loop("no optimizer step at all")
def never_steps(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.num_updates = 0
    context.said = "optimizer"
    for step in range(1100):
        recorder.step(lambda batch: model(batch).square().mean().backward(), inputs(context, step))


@loop("step after close")
def after_close(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.num_updates = 30
    context.said = "closed"
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        if step == 31:
            recorder.close()
        recorder.step(train_step, inputs(context, step))


@loop("two recorders")
def two_recorders(context: Context) -> None:
    model, optimizer = parts()
    twin, its_optimizer = parts()
    recorder = context.record(model, optimizer)
    other = context.record(twin, its_optimizer, run="other")
    train_step = simple_step(recorder, model, optimizer)
    train_twin = simple_step(other, twin, its_optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
        other.step(train_twin, inputs(context, step))


@loop("a notebook cell run twice")
def cell_twice(context: Context) -> None:
    for _ in range(2):
        model, optimizer = parts()
        recorder = context.record(model, optimizer)
        train_step = simple_step(recorder, model, optimizer)
        for step in range(1, NUM_STEPS + 1):
            recorder.step(train_step, inputs(context, step))


@loop("with, and an exception at the end")
def with_block(context: Context) -> None:
    model, optimizer = parts()
    with contextlib.suppress(ValueError), context.record(model, optimizer) as recorder:
        train_step = simple_step(recorder, model, optimizer)
        for step in range(1, NUM_STEPS + 1):
            recorder.step(train_step, inputs(context, step))
        raise ValueError
