"""Sealed, second set: trainings with which nothing is wrong; resumes, rates and precision."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    stripes,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import Session, begin, nano, over, say
from benchmarks.field_cases.second_models import NanoLM, StripeNet, WordLSTM, mlp
from torch import Tensor
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    LambdaLR,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import SWALR, AveragedModel

import sonde


def resume_a_small_gpt(job: Job) -> None:
    """Weights, moments, schedule, generators and position are restored."""
    begin(91)
    stream = byte_stream()
    model = NanoLM(dropout=0.15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    session = Session(
        model,
        optimizer,
        lambda step: window(stream, step, size=8, block=48),
        lambda rows: model(rows[:, :-1], rows[:, 1:])[1],
    )
    session.named = {"scheduler": CosineAnnealingLR(optimizer, T_max=200)}
    session.decode = from_bytes
    session.run(job)


def resume_with_the_state_of_the_generator(job: Job) -> None:
    """Rows are drawn from the global generator, whose state is in the checkpoint."""
    begin(92)
    rows = word_rows(2400)
    model = WordLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)

    session = Session(model, optimizer, lambda _: rows[torch.randint(0, len(rows), (20,))], loss_of)
    session.decode = from_words
    session.saved = 110
    session.killed = 118
    session.last = 175
    session.run(job)


def resume_at_a_rate_as_declared(job: Job) -> None:
    """All is restored, then the rate is set to a third on purpose, and the recorder is told."""
    begin(93)
    pictures, labels = stripes(noise=1.8)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = epoch_order(len(labels), step, 24)
        return pictures[chosen], labels[chosen]

    session = Session(
        model, optimizer, draw, lambda batch: F.cross_entropy(model(batch[0]), batch[1])
    )

    def load(state: dict[str, Any]) -> int:
        step = session.load(state)
        optimizer.param_groups[0]["lr"] = 0.02
        return step

    session.run(job, load, expect="rate")


def forty_rows_by_heart(job: Job) -> None:
    """A check that the model can learn: forty rows, a hundred times."""
    begin(94)
    stream = byte_stream()
    rows = window(stream, 0, size=40, block=40)
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    nano(
        job,
        model,
        optimizer,
        lambda step: rows[epoch_order(40, step, 8)],
        300,
        decode=from_bytes,
        config={"num_rows": 40, "epochs": 60},
    )


def rate_falls_on_a_plateau(job: Job) -> None:
    """`ReduceLROnPlateau` halves the rate whenever the mean loss of 20 steps stands still."""
    begin(95)
    model = mlp(12, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    with sonde.Recorder(job.run, model, optimizer, scheduler=scheduler) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = recorder.loss(F.mse_loss(model(batch[0]).squeeze(1), batch[1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        total = 0.0
        for step in range(1, 401):
            loss = recorder.step(train_step, houses(step))
            total += float(loss)
            say(step, loss)
            if step % 20 == 0:
                scheduler.step(total / 20)
                total = 0.0


def scale_settles_in_the_first_steps(job: Job) -> None:
    """In float16 a scale of 2**30 is halved until it fits, and doubled every 70 steps."""
    begin(96)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=70)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_bytes, scaler=scaler)

    def train_step(rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for step in range(170):
        say(step + 1, recorder.step(train_step, window(stream, step, size=8, block=32)))
    recorder.close()


def bfloat16_with_normed_attention(job: Job) -> None:
    """Autocast to bfloat16, queries and keys of unit length, a rate of 1e-2, four micro-batches."""
    begin(97)
    stream = byte_stream()
    model = NanoLM(qk_norm=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_bytes)

    def train_step(rows: Tensor, last: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        (loss / 4).backward()
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for number in range(4 * 150):
        rows = window(stream, number, size=4, block=32)
        loss = recorder.step(train_step, rows, last=number % 4 == 3)
        if number % 4 == 3:
            say(number // 4 + 1, loss)
    recorder.close()


def warm_up_from_zero(job: Job) -> None:
    """The first update has a rate of exactly 0, as a linear warm-up gives it."""
    begin(98)
    stream = byte_stream()
    model = NanoLM(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = LambdaLR(optimizer, lambda step: min(step / 40, max(0.0, (260 - step) / 220)))
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, step, size=16, block=32),
        220,
        decode=from_bytes,
        scheduler=scheduler,
    )


def restarts_that_grow_longer(job: Job) -> None:
    """`CosineAnnealingWarmRestarts(T_0=40, T_mult=2)`: the rate goes back up at 40 and 120."""
    begin(99)
    pictures, labels = stripes(noise=1.8)
    model = StripeNet(width=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=40, T_mult=2)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(260):
            chosen = epoch_order(len(labels), step, 32)
            yield pictures[chosen], labels[chosen]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
        scheduler=scheduler,
    )


def weights_are_averaged_at_the_end(job: Job) -> None:
    """From step 180 on the rate goes to a constant, and the weights are averaged aside (SWA)."""
    begin(100)
    model = mlp(12, 48, 48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    average = AveragedModel(model)
    falling = CosineAnnealingLR(optimizer, T_max=180)
    constant = SWALR(optimizer, swa_lr=0.01, anneal_epochs=10)
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=falling)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = recorder.loss(F.mse_loss(model(batch[0]).squeeze(1), batch[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 301):
        say(step, recorder.step(train_step, houses(step)))
        if step < 180:
            falling.step()
        else:
            average.update_parameters(model)
            constant.step()
    recorder.close()


CASES = (
    control(resume_a_small_gpt),
    control(resume_with_the_state_of_the_generator),
    control(resume_at_a_rate_as_declared),
    control(forty_rows_by_heart),
    control(rate_falls_on_a_plateau),
    control(scale_settles_in_the_first_steps),
    control(bfloat16_with_normed_attention),
    control(warm_up_from_zero),
    control(restarts_that_grow_longer),
    control(weights_are_averaged_at_the_end),
)

if __name__ == "__main__":
    main(CASES)
