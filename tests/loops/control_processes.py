"""Forks, threads, generators, and what a step does around its loss."""

import copy
import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from loops.context import NUM_STEPS, Context
from loops.control import CONTROLS, inputs, loop, parts, simple_step
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset


def child(action: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


@loop("fork: the child ends by sys.exit")
def fork_exit(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
        if step % 20 == 0:
            process = multiprocessing.get_context("fork").Process(target=sys.exit)
            process.start()
            process.join(20)
            assert process.exitcode == 0


@loop("fork: the child trains on")
def fork_trains(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
        if step == 30:
            state = torch.get_rng_state()
            assert child(lambda: recorder.step(train_step, torch.randn(6, 8))) == 0
            torch.set_rng_state(state)


@loop("fork: the child closes the recorder")
def fork_closes(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
        if step == 30:
            assert child(recorder.close) == 0


def loader_workers(context: Context, method: str) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    dataset = TensorDataset(torch.randn(NUM_STEPS * 6, 8))
    loader = DataLoader(dataset, 6, num_workers=2, multiprocessing_context=method)
    for step, (batch,) in enumerate(loader, 1):
        recorder.step(train_step, batch * context.scale(step))


CONTROLS["data workers by fork"] = lambda context: loader_workers(context, "fork")


@loop("threads")
def threads(context: Context) -> None:
    """A thread beside the loop allocates, logs and collects garbage."""
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    ends = threading.Event()

    def busy() -> None:
        while not ends.wait(0.001):
            gc.collect(0)

    thread = threading.Thread(target=busy)
    thread.start()
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
    ends.set()
    thread.join()


@loop("training in another thread")
def in_a_thread(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)

    def train() -> None:
        for step in range(1, NUM_STEPS + 1):
            recorder.step(train_step, inputs(context, step))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


@loop("batches by Python's random")
def shuffled_by_random(context: Context) -> None:
    model, optimizer = parts()
    data = torch.randn(200, 8)
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        rows = random.sample(range(200), 6)
        recorder.step(train_step, data[rows] * context.scale(step))


@loop("batches by numpy's random")
def shuffled_by_numpy(context: Context) -> None:
    model, optimizer = parts()
    data = torch.randn(200, 8)
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        rows = np.random.permutation(200)[:6]  # noqa: NPY002
        recorder.step(train_step, data[rows] * context.scale(step))


@loop("a generator drawn from in the step, before the loss")
def drawn_before_the_loss(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    generator = torch.Generator().manual_seed(5)
    source = np.random.default_rng(5)

    def train_step(batch: Tensor) -> None:
        noise = torch.randn(batch.shape, generator=generator) * 0.1 + float(source.normal())
        recorder.loss(model(batch + noise).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("a counter of the step function")
def counter_in_a_closure(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    num_calls = 0

    def train_step(batch: Tensor) -> None:
        nonlocal num_calls
        num_calls += 1
        recorder.loss(model(batch * (1 + 0.01 * num_calls)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("the step takes its data itself")
def takes_data(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    steps = iter(range(1, 10 * NUM_STEPS))

    def batches() -> Iterator[Tensor]:
        for step in steps:
            yield inputs(context, step)

    source = batches()

    def train_step(_: object) -> None:
        recorder.loss(model(next(source)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(NUM_STEPS):
        recorder.step(train_step, None)


@loop("clipping")
def clipping(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        recorder.loss(model(batch).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("scaler")
def scaler(context: Context) -> None:
    model, optimizer = parts()
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    recorder = context.record(model, optimizer, scaler=grad_scaler)

    def train_step(batch: Tensor) -> None:
        optimizer.zero_grad()
        loss = recorder.loss(model(batch).square().mean())
        grad_scaler.scale(loss * 1e30).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("autocast")
def autocast(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = recorder.loss(model(batch).float().square().mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("batches overwritten in place")
def overwritten(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    memory = torch.empty(6, 8)
    for step in range(1, NUM_STEPS + 1):
        memory.copy_(inputs(context, step))
        recorder.step(train_step, memory)


@loop("gradients kept in place of None")
def zeroed_gradients(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


class ManyTensors(Dataset[list[Tensor]]):
    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, number: int) -> list[Tensor]:
        return [torch.full((8,), 0.01 * number) for _ in range(60)]


@loop("workers give batches of many tensors, and few files may be open")
def few_files(context: Context) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: list[Tensor]) -> None:
        time.sleep(0.02)  # so that no batches wait to be written
        recorder.loss(model(torch.stack(batch)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    loader: Any = DataLoader(ManyTensors(), batch_size=None, num_workers=1, prefetch_factor=1)
    for batch in loader:
        recorder.step(train_step, batch)


@loop("an object that holds the recorder is copied")
def holder_copied(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    holder = types.SimpleNamespace(model=model, recorder=recorder)
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
        if step == 30:
            copied = copy.deepcopy(holder)
            assert copied.recorder.step(len, [1, 2]) == 2


@loop("an alarm rings in the middle of the recorder")
def alarm(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer, sample_ids=lambda _: rings())
    train_step = simple_step(recorder, model, optimizer)
    context.num_updates = NUM_STEPS - 1
    waiting = [41]

    def ring(*_: object) -> None:
        raise TimeoutError

    def rings() -> None:
        if recorder.num_updates + 1 in waiting:
            waiting.clear()
            os.kill(os.getpid(), signal.SIGALRM)

    signal.signal(signal.SIGALRM, ring)
    num_rung = 0
    for step in range(1, NUM_STEPS + 1):
        batch = inputs(context, step)
        if step == 41 and not context.is_watched:
            num_rung += 1
            continue
        try:
            recorder.step(train_step, batch)
        except TimeoutError:
            num_rung += 1
    assert num_rung == 1
