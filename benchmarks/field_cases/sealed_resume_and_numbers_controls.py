"""Sealed: resumes, rates and precisions that are as they should be."""

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
    declare,
    follow,
    gpt,
    next_token_loss,
    parts,
    read_checkpoint,
    resume_training,
    train,
)
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import batches, blocks, decode
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import sonde


def resume_exactly_with_a_scaler(job: Job) -> None:
    """Everything is restored, the scaler too."""
    whole = parts(seed=3)
    whole.extra["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=30)
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job)))


def resume_huggingface_exactly_while_accumulating(job: Job) -> None:
    """The Trainer restores everything, in the middle of an epoch."""
    trainer = huggingface(
        job, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=180
    )
    resume_huggingface(job, trainer)


def resume_lightning_exactly_with_clipping(job: Job) -> None:
    """`fit` with `ckpt_path`."""
    module = lightning_module(gpt(seed=4), next_token_loss)
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / f"step={SAVED}.ckpt")
    trainer = lightning(job, decode=decode, gradient_clip_val=1.0)
    trainer.fit(module, loader(blocks(num=900)), ckpt_path=path)


def resume_with_a_declared_rate(job: Job) -> None:
    """Everything is restored; then the rate is halved on purpose, and the recorder is told."""
    whole = parts(seed=5)

    def load() -> int:
        step = whole.load(read_checkpoint(job))
        whole.scheduler.base_lrs = [rate / 2 for rate in whole.scheduler.base_lrs]
        for group in whole.optimizer.param_groups:
            group["lr"] /= 2
        return step

    resume_training(job, whole, load, before_first=lambda recorder: declare(recorder, "rate"))


def one_cycle(job: Job) -> None:
    """The rate rises to its height in the middle of the run and falls again."""
    model = gpt(seed=2)
    optimizer = adamw(model, lr=1e-4)
    scheduler = OneCycleLR(optimizer, max_lr=8e-3, total_steps=210)
    train(
        job,
        model,
        optimizer,
        lambda batch: next_token_loss(model, batch),
        batches(blocks(), 200),
        scheduler=scheduler,
    )


def autocast_to_bfloat16(job: Job) -> None:
    """The forward runs in bfloat16, the weights are in float32."""
    model = gpt(seed=6)

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return next_token_loss(model, batch)

    train(job, model, adamw(model), loss_of, batches(blocks(), 140))


def high_rate_that_is_fine(job: Job) -> None:
    """A high rate and small batches: a noisy loss that falls."""
    model = gpt(seed=7)
    optimizer = adamw(model, lr=1.2e-2)
    every = batches(blocks(), 240, size=4)
    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), every)


def scaler_that_skips_now_and_then(job: Job) -> None:
    """The scale grows every 12 steps until it is too high, and is halved: as designed."""
    model = gpt(seed=8)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=12)
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


CASES = (
    control(resume_exactly_with_a_scaler),
    control(resume_huggingface_exactly_while_accumulating, host="huggingface"),
    control(resume_lightning_exactly_with_clipping, host="lightning"),
    control(resume_with_a_declared_rate, also_true="resume_schedule"),
    control(one_cycle),
    control(autocast_to_bfloat16),
    control(high_rate_that_is_fine),
    control(scaler_that_skips_now_and_then),
)

if __name__ == "__main__":
    main(CASES)
