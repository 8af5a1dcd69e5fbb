"""Loops that change something before their loss is known: what a look at the scene must put back,
or must not touch.
"""

import asyncio
import copy
import dataclasses
import logging
import queue
import threading
import types
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from loops.context import NUM_STEPS, Context, network
from loops.control import inputs, loop, parts, simple_step
from torch import Tensor, nn

NUM_CALLS = 0
GENERATOR = np.random.default_rng(5)


def run(context: Context, recorder: Any, train_step: Any) -> None:
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


def tokens(context: Context, step: int) -> Tensor:
    low = 30 if context.scale(step) > 1 else 0
    return torch.randint(low, low + 10, (4, 12))


@loop("another optimizer moves before the loss is known")
def discriminator_first(context: Context) -> None:
    generator = nn.Linear(8, 8)
    judge = network(8, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3)
    recorder = context.record(generator, of_generator)
    context.hashed.append(judge)

    def train_step(batch: Tensor) -> None:
        of_judge.zero_grad()
        fake = generator(torch.randn_like(batch)).detach()
        (F.softplus(-judge(batch)).mean() + F.softplus(judge(fake)).mean()).backward()
        of_judge.step()
        of_generator.zero_grad()
        fooled = F.softplus(-judge(generator(torch.randn_like(batch)))).mean()
        recorder.loss(fooled + batch.square().mean()).backward()
        of_generator.step()

    run(context, recorder, train_step)


@loop("gradients of another model are switched off in the step")
def switched_off(context: Context) -> None:
    generator = nn.Linear(8, 8)
    judge = network(8, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3)
    recorder = context.record(generator, of_generator)
    context.hashed.append(judge)

    def train_step(batch: Tensor) -> None:
        judge.requires_grad_(False)
        fooled = F.softplus(-judge(generator(batch))).mean() * batch.square().mean()
        recorder.loss(fooled).backward()
        of_generator.step()
        of_generator.zero_grad()
        judge.requires_grad_(True)
        F.softplus(-judge(batch)).mean().backward()
        of_judge.step()
        of_judge.zero_grad()

    run(context, recorder, train_step)


@loop("a teacher that follows before the loss")
def teacher(context: Context) -> None:
    model, optimizer = parts()
    slow = copy.deepcopy(model)
    recorder = context.record(model, optimizer)
    context.hashed.append(slow)

    def train_step(batch: Tensor) -> None:
        with torch.no_grad():
            for old, new in zip(slow.parameters(), model.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
            wanted = slow(batch)
        recorder.loss(F.mse_loss(model(batch), wanted) + batch.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("weights are given other memory in forward")
def other_memory(context: Context) -> None:
    class Momentum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = network()
            self.key = copy.deepcopy(self.query).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            for old, new in zip(self.key.parameters(), self.query.parameters(), strict=True):
                old.data = old.data * 0.9 + new.data * 0.1
            return self.query(x) - self.key(x) + x[:, :4]

    model = Momentum()
    optimizer = torch.optim.AdamW(model.query.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)
    run(context, recorder, simple_step(recorder, model, optimizer))


@loop("the loss is told at other weights")
def sharpness_aware(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        model(batch).square().mean().backward()
        moves = [0.01 * weight.grad for weight in model.parameters() if weight.grad is not None]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        recorder.loss(model(batch).square().mean()).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("a criterion with a state of its own")
def criterion(context: Context) -> None:
    class Centred(nn.Module):
        centre: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(4))

        def forward(self, scores: Tensor) -> Tensor:
            self.centre = self.centre * 0.9 + scores.detach().mean(0) * 0.1
            return (scores - self.centre).square().mean()

    model, optimizer = parts()
    measure = Centred()
    recorder = context.record(model, optimizer)
    context.hashed.append(measure)

    def train_step(batch: Tensor) -> None:
        recorder.loss(measure(model(batch))).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclasses.dataclass
class Kept:
    seen: list[int] = dataclasses.field(default_factory=list)


@loop("objects that count")
def objects(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    space = types.SimpleNamespace(count=0, inner=types.SimpleNamespace(count=0))
    slotted = Slotted()
    kept = Kept()
    memory = np.zeros(8, np.float32)

    def train_step(batch: Tensor, default: list[int] = [0]) -> None:  # noqa: B006  as people write
        space.count += 1
        space.inner.count += 2
        slotted.count += 1
        kept.seen.append(1)
        default[0] += 1
        memory[:] = 0.9 * memory + 0.1 * batch.mean(0).numpy()
        total = space.count + space.inner.count + slotted.count + len(kept.seen) + default[0]
        scores = model(batch - torch.from_numpy(memory.copy())) * (1 + 0.001 * total)
        recorder.loss(scores.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("a class and globals that count in forward")
def class_and_globals(context: Context) -> None:
    class Counting(nn.Module):
        count: ClassVar[int] = 0

        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            global NUM_CALLS
            NUM_CALLS += 1
            Counting.count += 1
            shifted = self.inner(x + float(GENERATOR.normal()))
            return shifted * (1 + 0.001 * NUM_CALLS + 0.001 * Counting.count)

    model = Counting()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)
    run(context, recorder, simple_step(recorder, model, optimizer))


@loop("embeddings that forward shortens")
def shortened(context: Context) -> None:
    model = nn.Sequential(nn.Embedding(40, 8, max_norm=0.5), nn.Linear(8, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        scores = model(batch[:, :-1]).flatten(0, 1)
        recorder.loss(F.cross_entropy(scores, batch[:, 1:].flatten())).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, tokens(context, step))


@loop("the step takes its batch apart")
def taken_apart(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: dict[str, Any]) -> None:
        recorder.loss(model(batch.pop("x")).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, {"x": inputs(context, step), "ids": [1, 2]})


@loop("the step changes arrays of the dataset")
def dataset_changed(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    rows = np.random.default_rng(3).normal(size=(NUM_STEPS // 2, 6, 8)).astype(np.float32)

    def train_step(batch: np.ndarray[Any, Any]) -> None:
        batch *= 0.9
        recorder.loss(model(torch.from_numpy(batch)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        rows[step % len(rows)] *= context.scale(step)
        recorder.step(train_step, rows[step % len(rows)])


@loop("a queue that a thread fills")
def prefetched(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    waiting: queue.Queue[Tensor] = queue.Queue(4)
    batches = [inputs(context, step) for step in range(1, NUM_STEPS + 1)]

    def fill() -> None:
        for batch in batches:
            waiting.put(batch)

    threading.Thread(target=fill, daemon=True).start()

    def train_step(_: object) -> None:
        recorder.loss(model(waiting.get()).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(NUM_STEPS):
        recorder.step(train_step, None)


@loop("the model is copied while it is recorded")
def copied(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    average = copy.deepcopy(model)
    context.hashed.append(average)
    run(context, recorder, simple_step(recorder, model, optimizer))


@loop("a scripted model")
def scripted(context: Context) -> None:
    model: Any = torch.jit.script(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)
    run(context, recorder, simple_step(recorder, model, optimizer))


@loop("a loss function that is compiled")
def compiled_loss(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    measure = torch.compile(lambda scores: scores.square().mean(), backend="eager")

    def train_step(batch: Tensor) -> None:
        recorder.loss(measure(model(batch))).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("two recorders around one step")
def around_one_step(context: Context) -> None:
    model, optimizer = parts()
    outer = context.record(model, optimizer)
    inner = context.record(model, optimizer, run="inner")

    def train_step(batch: Tensor) -> None:
        inner.loss(outer.loss(model(batch).square().mean())).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, outer, lambda batch: inner.step(train_step, batch))


@loop("a handler of the log raises")
def log_raises(context: Context) -> None:
    class Refuses(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log today")

    logging.basicConfig(level=logging.DEBUG, handlers=[Refuses()], force=True)
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    run(context, recorder, simple_step(recorder, model, optimizer))


@loop("a schedule that moves before the loss")
def schedule_first(context: Context) -> None:
    model, optimizer = parts()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=200)
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        schedule.step()
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("an asynchronous step function")
def asynchronous(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.said = "its step function runs after it has returned"

    async def train_step(batch: Tensor) -> None:
        await asyncio.sleep(0)
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    async def train() -> None:
        for step in range(1, NUM_STEPS + 1):
            await recorder.step(train_step, inputs(context, step))

    asyncio.run(train())
