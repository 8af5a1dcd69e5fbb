"""Steps that fail, are interrupted, or are accumulated."""

import contextlib
import os
import signal
from functools import partial

from loops.context import NUM_STEPS, Context
from loops.control import CONTROLS, inputs, loop, parts
from torch import Tensor


class OutOfMemoryError(RuntimeError):
    """Stands for torch's own, which a test cannot raise at will."""


def failing(context: Context, place: str) -> None:
    """Every tenth batch fails at one place of the step, and is skipped."""
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor, fails: bool) -> None:
        if fails and place == "before":
            raise OutOfMemoryError
        loss = recorder.loss(model(batch).square().mean())
        if not fails or place == "after":
            context.losses.append(loss.item())
        if fails and place == "forward":
            raise OutOfMemoryError
        loss.backward()
        if fails and place == "backward":
            raise OutOfMemoryError
        optimizer.step()
        if fails and place == "after":
            raise OutOfMemoryError
        optimizer.zero_grad()

    num_failed = 0
    for step in range(1, NUM_STEPS + 1):
        fails = step % 10 == 0
        try:
            recorder.step(
                lambda batch, fails=fails: train_step(batch, fails), inputs(context, step)
            )
        except OutOfMemoryError:
            num_failed += place != "after"
            optimizer.zero_grad()
            continue
    context.num_updates = NUM_STEPS - num_failed


for _place in ("before", "forward", "backward", "after"):
    CONTROLS[f"a batch fails: {_place}"] = partial(failing, place=_place)


@loop("a batch fails and its gradients stay")
def gradients_stay(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.num_updates = NUM_STEPS - NUM_STEPS // 10
    for step in range(1, NUM_STEPS + 1):

        def train_step(batch: Tensor, step: int = step) -> None:
            recorder.loss(model(batch).square().mean()).backward()
            if step % 10 == 0:
                raise OutOfMemoryError
            optimizer.step()
            optimizer.zero_grad()

        with contextlib.suppress(OutOfMemoryError):
            recorder.step(train_step, inputs(context, step))


@loop("Ctrl-C in a step, then on")
def interrupted(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.num_updates = NUM_STEPS - 1
    for step in range(1, NUM_STEPS + 1):

        def train_step(batch: Tensor, step: int = step) -> None:
            loss = recorder.loss(model(batch).square().mean())
            if step == 30:
                raise KeyboardInterrupt
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        with contextlib.suppress(KeyboardInterrupt):
            recorder.step(train_step, inputs(context, step))


@loop("a real Ctrl-C in a step, then on")
def really_interrupted(context: Context) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.num_updates = NUM_STEPS - 1
    for step in range(1, NUM_STEPS + 1):

        def train_step(batch: Tensor, step: int = step) -> None:
            if step == 30:
                os.kill(os.getpid(), signal.SIGINT)
                raise AssertionError  # not reached
            recorder.loss(model(batch).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

        with contextlib.suppress(KeyboardInterrupt):
            recorder.step(train_step, inputs(context, step))


def accumulating(context: Context, count: int, *, with_last: bool) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor, last: bool) -> Tensor:
        loss = model(batch).square().mean()
        (recorder.loss(loss) / count).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    for step in range(1, NUM_STEPS + 1):
        for number in range(count):
            last = number == count - 1
            batch = inputs(context, step)
            if with_last:
                recorder.step(train_step, batch, last=last)
            else:
                recorder.step(lambda batch, last=last: train_step(batch, last), batch)


for _count in (1, 2, 7, 64):
    CONTROLS[f"{_count} micro-batches, last given"] = partial(
        accumulating, count=_count, with_last=True
    )
for _count in (2, 8):
    CONTROLS[f"{_count} micro-batches, last not given"] = partial(
        accumulating, count=_count, with_last=False
    )


@loop("accumulation begun and never completed")
def never_completed(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)
    context.num_updates = NUM_STEPS // 4
    for step in range(1, NUM_STEPS + 3):

        def train_step(batch: Tensor, step: int = step) -> None:
            recorder.loss(model(batch).square().mean()).backward()
            if step % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

        recorder.step(train_step, inputs(context, step))
