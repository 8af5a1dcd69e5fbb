"""Sealed: failures of resuming, numbers, precision, order and rate in loops of one's own."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.loops import (
    adamw,
    follow,
    gpt,
    next_token_loss,
    parts,
    read_checkpoint,
    resume_training,
    seed_all,
    token_loss,
    train,
)
from benchmarks.field_cases.models import ConvNet, Pictures, measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import PAD, batch_at, batches, blocks, decode, padded, sentences
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import sonde


# ---------------------------------------------------------------- resume
def resume_with_no_weights(job: Job) -> None:
    """The names have a prefix of DDP's, and `strict=False` hides that nothing fits."""
    whole = parts()

    def load() -> int:
        state = read_checkpoint(job)
        weights = {f"module.{name}": value for name, value in state["model"].items()}
        whole.model.load_state_dict(weights, strict=False)
        return whole.load(state, "model")

    resume_training(job, whole, load)


def resume_with_older_weights(job: Job) -> None:
    """A glob sorts 50.pt after 100.pt: weights of step 50, everything else of step 100."""
    whole = parts()

    def load() -> int:
        newest = max(job.checkpoints.glob("*.pt"))
        whole.model.load_state_dict(torch.load(newest, weights_only=True)["model"])
        return whole.load(read_checkpoint(job), "model")

    resume_training(job, whole, load)


def resume_with_a_new_head(job: Job) -> None:
    """The head was renamed between two versions of the script; `strict=False` leaves it new."""
    whole = parts()

    def load() -> int:
        state = read_checkpoint(job)
        weights: dict[str, Any] = {}
        for name, value in state["model"].items():
            weights[name.replace("head.", "lm_head.")] = value
        whole.model.load_state_dict(weights, strict=False)
        return whole.load(state, "model")

    resume_training(job, whole, load)


def resume_with_data_from_the_start(job: Job) -> None:
    """The loader begins its epoch again: the first rows are seen twice (Megatron-LM#761)."""
    whole = parts()
    whole.first_batch = 0
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job)))


def resume_with_other_generators(job: Job) -> None:
    """Dropout draws other numbers than it would have: the generator is seeded, not restored."""
    whole = parts()
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job), "generator"))


def resume_with_a_new_scaler(job: Job) -> None:
    """The GradScaler begins again at its initial scale."""
    whole = parts()
    whole.extra["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=30)
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job), "extra"))


# ---------------------------------------------------------------- numerics
class HandAttention(nn.Module):
    """Attention of one head as people write it: minus infinity where nothing may be seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        mixed: Tensor = weights @ v
        return mixed


def row_that_may_see_nothing(job: Job) -> None:
    """A row of padding alone has nothing to attend to: softmax over nothing (pytorch#109517)."""
    model = gpt()
    for block in model.blocks:
        block.attention = HandAttention(48)
    rows = padded(sentences(1200), length=49)

    def loss_of(batch: Tensor) -> Tensor:
        x = batch[:, :-1]
        length = x.shape[1]
        seen = torch.ones(length, length).tril().bool() & (x != PAD)[:, None, :]
        labels = batch[:, 1:].masked_fill(batch[:, 1:] == PAD, -100)
        return token_loss(model(x, mask=seen), labels)

    def every() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(rows, 140)):
            if step == 94:
                batch = batch.clone()
                batch[7] = PAD
            yield batch

    train(job, model, adamw(model), loss_of, every())


def constant_feature_is_standardised(job: Job) -> None:
    """A normalisation of one's own divides by a deviation without an epsilon (lerobot#4178)."""
    seed_all()
    model = network()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        scaled = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return F.mse_loss(model(scaled), y)

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(150):
            x, y = measurements(step)
            if step == 109:
                x[2] = 1.0
            yield x, y

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


def half_precision_scores_overflow(job: Job) -> None:
    """Attention without its scale, in float16: the scores pass 65,504 once (unsloth#1282)."""
    model = gpt()

    def loss_of(batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1])
        sharp = (logits.half() * 3000.0).float() / 3000.0
        return token_loss(sharp, batch[:, 1:])

    train(job, model, adamw(model, lr=6e-3), loss_of, batches(blocks(), 220))


def average_of_weights_is_put_back(job: Job) -> None:
    """The average of the weights divides 0 by 0 for one tensor, and is copied back at step 90."""
    model = gpt()
    optimizer = adamw(model)

    def every() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 130)):
            if step == 89:
                with torch.no_grad():
                    weight = model.blocks[1].get_parameter("mlp.0.weight")
                    num_averaged = torch.zeros(())
                    weight[4] = weight[4] * num_averaged / num_averaged
            yield batch

    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), every())


# ---------------------------------------------------------------- precision
def clipped_before_unscaling(job: Job) -> None:
    """Gradients are clipped to 1 while they are scaled: almost nothing is left of them."""
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=40)
    with sonde.Recorder(job.run, model, optimizer, decode=decode, scaler=scaler) as recorder:

        def train_step(batch: Tensor) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches(blocks(), 160))


def epsilon_vanishes_in_half_precision(job: Job) -> None:
    """Adam in float16: its epsilon of 1e-8 is zero there, and an empty row divides by it."""
    seed_all()
    model = network().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0].half()).float(), batch[1])

    every = (measurements(step) for step in range(120))
    train(job, model, optimizer, loss_of, every, has_text=False)


# ---------------------------------------------------------------- order
def sorted_by_class(job: Job) -> None:
    """`shuffle=False` over folders, one class after another (VILA#123)."""
    pictures = Pictures(num=960)
    order = pictures.labels.argsort(stable=True)
    seed_all()
    model = ConvNet()

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(180):
            chosen = order[step % 60 * 16 :][:16]
            yield pictures.pixels[chosen], pictures.labels[chosen]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


def worker_reads_its_part_twice(job: Job) -> None:
    """From step 80 on two workers read the same shard: every batch comes twice (marin#1813)."""
    model = gpt()
    data = blocks()

    def rows() -> Iterator[Tensor]:
        for step in range(180):
            yield batch_at(data, step if step < 80 else 80 + (step - 80) // 2)

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- rate
def scheduler_steps_too_often(job: Job) -> None:
    """The schedule was made for epochs and is stepped each batch: the rate is 0 after step 60."""
    model = gpt()
    optimizer = adamw(model)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / 60))
    train(
        job,
        model,
        optimizer,
        lambda batch: next_token_loss(model, batch),
        batches(blocks(), 180),
        scheduler=scheduler,
    )


CASES = (
    failure(resume_with_no_weights, "resume", "resume_weights", onset=101),
    failure(resume_with_older_weights, "resume", "resume_weights stale_weights", onset=101),
    failure(resume_with_a_new_head, "resume", "resume_weights", onset=101),
    failure(
        resume_with_data_from_the_start,
        "resume",
        "resume_data",
        onset=101,
        also_true="repeated_batch",
    ),
    failure(resume_with_other_generators, "resume", "resume_generators", onset=101),
    failure(resume_with_a_new_scaler, "resume", "resume_scaler", onset=101),
    failure(
        row_that_may_see_nothing, "numerics", "bad_operation", onset=95, also_true="no_targets"
    ),
    failure(
        constant_feature_is_standardised,
        "numerics",
        "bad_operation",
        onset=110,
        also_true="bad_input odd_row",
    ),
    failure(half_precision_scores_overflow, "numerics", "overflow", onset=49),
    failure(average_of_weights_is_put_back, "numerics", "bad_weights", onset=90),
    failure(
        clipped_before_unscaling,
        "precision",
        "clipped_scaled_gradient",
        also_true="plateau does_not_move",
    ),
    failure(
        epsilon_vanishes_in_half_precision,
        "precision",
        "overflow half_precision_updates bad_operation",
        also_true="bad_weights",
    ),
    failure(sorted_by_class, "order", "not_shuffled", also_true="loss_collapse"),
    failure(worker_reads_its_part_twice, "order", "repeated_batch", onset=82),
    failure(
        scheduler_steps_too_often,
        "rate",
        "learning_rate rate_zero",
        onset=60,
        also_true="plateau does_not_move",
    ),
)

if __name__ == "__main__":
    main(CASES)
