"""Failures of the fifth set: what a resume did not restore, in loops of one's own."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import (
    cars,
    chunk,
    corpus,
    decode,
    drawn,
    numerals,
    opinions,
)
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    File,
    Lion,
    begin,
    states,
    take,
    tell,
    warm_cosine,
)
from benchmarks.field_cases.fifth_models import VAE, Appraiser, Chat, Towers, UNet
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import sonde


def resume_with_groups_in_another_order(job: Job) -> None:
    """The second process lists the matrices of the last layer first. An optimizer's state is loaded
    by number: each matrix gets the moments of another one of its shape (Automodel#3883).
    """
    begin(501)
    data = corpus()
    model = Chat()
    file = File(job, at=90, killed=100, last=150)
    layers = list(model.h)
    if PLANTED and job.part == 2:
        layers.reverse()
    groups: list[dict[str, Any]] = [
        {"params": [model.wte.weight, model.lm_head.weight], "weight_decay": 0.0},
        {"params": [part for layer in layers for part in layer.parameters()]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)
    start = 0
    if file.goes_on:
        start = take(file.load(), model=model, optimizer=optimizer)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    recorder.num_updates = start

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for step in file.steps(start, lambda: states(model=model, optimizer=optimizer)):
        for group in optimizer.param_groups:
            group["lr"] = warm_cosine(step, 4e-3, 15, 220)
        tell(step, recorder.step(train_step, chunk(data, step, 12, 33)))
    recorder.close()


def resume_from_the_best_with_the_step_of_the_last(job: Job) -> None:
    """`best.pt` was written 40 updates before `last.pt`; weights and moments are taken from the
    best, the number of the step and the place in the data from the last (yolov5#292).
    """
    begin(502)
    brands, columns, price = cars(3200)
    model = Appraiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    file = File(job, at=90, killed=100, last=160)
    start = 0
    if file.goes_on:
        start = take(file.load(), model=model, optimizer=optimizer)
        if PLANTED:
            take(file.load("best.pt"), model=model, optimizer=optimizer)
    recorder = sonde.Recorder(job.run, model, optimizer)
    recorder.num_updates = start

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch["brand"], batch["columns"]), batch["price"])
        loss.backward()
        optimizer.step()
        return loss

    for step in file.steps(start, lambda: states(model=model, optimizer=optimizer)):
        chosen = drawn(3200, step, 32)
        batch = {"brand": brands[chosen], "columns": columns[chosen], "price": price[chosen]}
        tell(step, recorder.step(train_step, batch))
        if step == 50:
            torch.save({"step": step, **states(model=model, optimizer=optimizer)},
                       file.path("best.pt"))  # fmt: skip
    recorder.close()


def resume_with_the_schedule_at_the_micro_batches(job: Job) -> None:
    """Two micro-batches an update. `last_epoch` is set to the number of batches read, not to that
    of the updates: the schedule goes on at twice its place (Megatron-LM#7468).
    """
    begin(503)
    data = corpus(seed=72)
    model = Chat(layers=1)
    optimizer = Lion(model.parameters(), lr=6e-4, decay=0.1)
    file = File(job, at=80, killed=90, last=140)
    start = 0
    if file.goes_on:
        start = take(file.load(), model=model, optimizer=optimizer)
    passed = 2 * start if PLANTED else start
    scheduler = LambdaLR(
        optimizer,
        lambda step: warm_cosine(step + 1, 1.0, 10, 180, 0.02),
        last_epoch=passed - 1,
    )
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode, scheduler=scheduler)
    recorder.num_updates = start

    def train_step(rows: Tensor, last: bool) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])
        (loss / 2).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    for step in file.steps(start, lambda: states(model=model, optimizer=optimizer)):
        for micro in (0, 1):
            rows = chunk(data, 2 * step + micro, 8, 33)
            loss = recorder.step(train_step, rows, last=micro == 1)
        tell(step, loss)
    recorder.close()


def resume_with_the_average_for_the_weights(job: Job) -> None:
    """A denoiser and the average of its weights. The file for inference, which has the average, is
    loaded into the model that trains (SimpleTuner#3045; CausVid#19).
    """
    begin(504)
    pictures, _ = numerals(2400)
    model = UNet()
    average = UNet()
    average.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    signal = torch.linspace(0.995, 0.02, 100)
    file = File(job, at=90, killed=105, last=150)
    start = 0
    if file.goes_on:
        state = file.load()
        start = take(state, model=model, average=average, optimizer=optimizer)
        if PLANTED:
            model.load_state_dict(state["average"])
    recorder = sonde.Recorder(job.run, model, optimizer, average=average)
    recorder.num_updates = start

    def train_step(clean: Tensor) -> Tensor:
        times = torch.randint(0, 100, (len(clean),))
        share = signal[times].view(-1, 1, 1, 1)
        noise = torch.randn_like(clean)
        made = model(share.sqrt() * clean + (1 - share).sqrt() * noise, times)
        loss = F.mse_loss(made, noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for kept, part in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(part, 0.01)
        return loss.detach()

    for step in file.steps(
        start, lambda: states(model=model, average=average, optimizer=optimizer)
    ):
        tell(step, recorder.step(train_step, pictures[drawn(2400, step, 24)]))
    recorder.close()


def resume_at_the_beginning_of_the_epoch(job: Job) -> None:
    """The checkpoint knows the epoch, not the batch: the epoch of 75 batches in which the run was
    killed begins again, with the ratings that it had already (Megatron-LM#1842).
    """
    begin(505)
    people, films, stars = opinions(2400)
    model = Towers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-2)
    file = File(job, at=120, killed=130, last=190)
    start = 0
    if file.goes_on:
        start = take(file.load(), model=model, optimizer=optimizer)
    recorder = sonde.Recorder(job.run, model, optimizer, sample_ids=lambda batch: batch["row"])
    recorder.num_updates = start

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(model(batch["person"], batch["film"]), batch["stars"])
        loss.backward()
        optimizer.step()
        return loss

    def read(first: int) -> Iterator[dict[str, Tensor]]:
        epoch = first // 75
        skipped = 0 if PLANTED else first % 75
        while True:
            dice = torch.Generator().manual_seed(900 + epoch)
            order = torch.randperm(2400, generator=dice).view(75, 32)
            for rows in order[skipped:]:
                yield {"row": rows, "person": people[rows], "film": films[rows],
                       "stars": stars[rows]}  # fmt: skip
            skipped = 0
            epoch += 1

    batches = read(start)
    for step in file.steps(start, lambda: states(model=model, optimizer=optimizer)):
        tell(step, recorder.step(train_step, next(batches)))
    recorder.close()


def resume_that_sets_the_seed_again(job: Job) -> None:
    """The generator is restored, and then a library's `seed_everything` is called for the second
    time: the noise of the codes is that of the first updates (OneTrainer#1604).
    """
    begin(506)
    pictures, _ = numerals(2400, seed=80)
    model = VAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    file = File(job, at=80, killed=95, last=150)
    start = 0
    if file.goes_on:
        start = take(file.load(), model=model, optimizer=optimizer)
        if PLANTED:
            begin(506)
    recorder = sonde.Recorder(job.run, model, optimizer)
    recorder.num_updates = start

    def train_step(batch: Tensor) -> Tensor:
        made, divergence = model(batch)
        missed = F.mse_loss(made, batch, reduction="none").sum(1).mean()
        loss: Tensor = missed + 0.5 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def state() -> dict[str, Any]:
        return states(model=model, optimizer=optimizer)

    for step in file.steps(start, state):
        tell(step, recorder.step(train_step, pictures[drawn(2400, step, 32)].flatten(1)))
    recorder.close()


CASES = (
    failure(resume_with_groups_in_another_order, "resume", "resume_optimizer", onset=91),
    failure(
        resume_from_the_best_with_the_step_of_the_last,
        "resume",
        "resume_weights",
        onset=91,
        also_true="resume_optimizer resume_generators",
    ),
    failure(
        resume_with_the_schedule_at_the_micro_batches,
        "resume",
        "resume_schedule learning_rate",
        onset=81,
    ),
    failure(resume_with_the_average_for_the_weights, "resume", "resume_weights", onset=91),
    failure(
        resume_at_the_beginning_of_the_epoch,
        "resume",
        "resume_data repeated_batch",
        onset=121,
        also_true="same_order",
    ),
    failure(resume_that_sets_the_seed_again, "resume", "resume_generators", onset=81),
)

if __name__ == "__main__":
    main(CASES)
