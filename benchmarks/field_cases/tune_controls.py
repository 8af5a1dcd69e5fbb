"""Trainings with which nothing is wrong, to tune on."""

from collections.abc import Iterator

import torch
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import (
    huggingface,
    lightning,
    lightning_module,
    loader,
    resume_huggingface,
)
from benchmarks.field_cases.loops import (
    SAVED,
    adamw,
    follow,
    gpt,
    next_token_loss,
    parts,
    read_checkpoint,
    resume_training,
    train,
)
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import batches, blocks, decode, padded, sentences
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

import sonde


def warm_restarts(job: Job) -> None:
    """The rate goes back to its height every 60 steps, on purpose."""
    model = gpt()
    optimizer = adamw(model, lr=4e-3)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=60)
    train(
        job,
        model,
        optimizer,
        lambda batch: next_token_loss(model, batch),
        batches(blocks(), 200),
        scheduler=scheduler,
    )


def resume_exactly(job: Job) -> None:
    """Everything is restored."""
    whole = parts()
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job)))


def resume_huggingface_exactly(job: Job) -> None:
    """The Trainer restores everything."""
    resume_huggingface(job, huggingface(job))


def resume_lightning_exactly(job: Job) -> None:
    """`fit` with `ckpt_path`."""
    module = lightning_module(gpt(), next_token_loss)
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / f"step={SAVED}.ckpt")
    lightning(job, decode=decode).fit(module, loader(blocks()), ckpt_path=path)


def frozen_backbone(job: Job) -> None:
    """Only the head learns, on purpose: the optimizer has its parameters alone."""
    model = gpt(dropout=0.0)
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.head = nn.Linear(48, model.head.out_features)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
    train(
        job,
        model,
        optimizer,
        lambda batch: next_token_loss(model, batch),
        batches(blocks(), 160),
    )


def small_last_batch(job: Job) -> None:
    """The last batch of each epoch has three rows instead of sixteen."""
    model = gpt()
    rows = blocks(num=16 * 40 + 3)

    def epochs() -> Iterator[Tensor]:
        for epoch in range(4):
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))
            yield from rows[order].split(16)

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), epochs())


def evaluation_in_between(job: Job) -> None:
    """Every 40 steps the model is evaluated, then set back to training."""
    model = gpt(dropout=0.2)
    optimizer = adamw(model)
    held_out = blocks(num=64, seed=9)
    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: Tensor) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        for first in range(0, 160, 40):
            follow(recorder, train_step, batches(blocks(), first + 40, first=first), first)
            model.eval()
            with torch.no_grad():
                print(f"held-out loss {float(next_token_loss(model, held_out)):.3f}")
            model.train()


def scaler_finds_its_scale(job: Job) -> None:
    """In float16 the first updates are skipped until the scale fits, and one later on."""
    model = gpt()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=60)
    with sonde.Recorder(job.run, model, optimizer, decode=decode, scaler=scaler) as recorder:

        def train_step(batch: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                loss = recorder.loss(next_token_loss(model, batch))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches(blocks(length=33), 160, size=8))


def accumulation_done_right(job: Job) -> None:
    """Four micro-batches of one size; the loss of each is divided by four."""
    model = gpt()
    optimizer = adamw(model)
    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: Tensor, last: bool) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            (loss / 4).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches(blocks(), 480, size=6), num_micro=4)


def curriculum(job: Job) -> None:
    """Short rows first, then long ones, as planned."""
    model = gpt()

    def lessons() -> Iterator[Tensor]:
        yield from batches(blocks(length=17), 60)
        yield from batches(blocks(length=33), 60)
        yield from batches(blocks(length=65), 60)

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), lessons())


def label_smoothing(job: Job) -> None:
    """The loss never goes below the smoothing's own entropy."""
    model = gpt()

    def loss_of(batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1]).flatten(0, 1)
        labels = batch[:, 1:].flatten()
        return nn.functional.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.2)

    rows = padded(sentences(1200), length=64)
    train(job, model, adamw(model), loss_of, batches(rows, 160))


CASES = (
    control(warm_restarts),
    control(resume_exactly),
    control(resume_huggingface_exactly, host="huggingface"),
    control(resume_lightning_exactly, host="lightning"),
    control(frozen_backbone),
    control(small_last_batch),
    control(evaluation_in_between),
    control(scaler_finds_its_scale),
    control(accumulation_done_right),
    control(curriculum),
    control(label_smoothing),
)

if __name__ == "__main__":
    main(CASES)
