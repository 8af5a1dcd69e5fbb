"""Sealed: trainings that tempt a judge to blame innocent samples."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import huggingface, lightning, lightning_module, loader
from benchmarks.field_cases.loops import adamw, gpt, next_token_loss, seed_all, train
from benchmarks.field_cases.models import Pictures, measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import batches, block_of, blocks, decode
from torch import Tensor, nn


def rare_class(job: Job) -> None:
    """One class is 3 % of the data: its rows have a high loss for a long time."""
    pictures = Pictures(num=1600, noise=1.5)
    is_rare = pictures.labels == 3
    kept = ~is_rare | (torch.arange(1600) % 8 == 0)
    pictures.pixels = pictures.pixels[kept]
    pictures.labels = pictures.labels[kept]
    seed_all()
    model = network(inputs=144, outputs=4)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0].flatten(1)), batch[1])

    every = (pictures.batch(step) for step in range(200))
    train(job, model, adamw(model, lr=1e-3), loss_of, every, has_text=False)


def mixed_corpus(job: Job) -> None:
    """A tenth of the corpus is code, from the start and throughout."""
    model = gpt()
    rows = blocks()
    for number in range(0, len(rows), 10):
        code = f"def f{number}(x, y):\n  return {{'a': x[{number % 7}] + y}}\n"
        rows[number] = block_of(code)
    every = batches(rows, 220)
    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), every)


def pretrained_start(job: Job) -> None:
    """The model was trained before: its loss is low from the first step on."""
    model = gpt(seed=2)
    before = adamw(model, lr=4e-3)
    for batch in batches(blocks(num=400), 250):
        next_token_loss(model, batch).backward()
        before.step()
        before.zero_grad()
    every = batches(blocks(num=400, seed=2), 140)
    optimizer = adamw(model, lr=5e-4)
    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), every)


def many_epochs_over_little(job: Job) -> None:
    """Eighty rows are seen fifty times and learnt by heart, on purpose."""
    model = gpt(dropout=0.0)
    every = batches(blocks(num=80), 250)
    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), every)


def mixture_that_shifts(job: Job) -> None:
    """The share of another kind of text rises from 0 to a half over 200 steps, as planned."""
    model = gpt()
    first = blocks()
    second = blocks(seed=7)
    for row in second:
        row[::12] = 63  # a digit here and there: numbered text

    def rows() -> Iterator[Tensor]:
        pairs = zip(batches(first, 200), batches(second, 200), strict=True)
        for step, (old, new) in enumerate(pairs):
            share = step * 8 // 200
            yield torch.cat((old[share:], new[:share]))

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


def batches_of_many_sizes(job: Job) -> None:
    """A token budget makes batches of 4 to 28 rows."""
    model = gpt()

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(num=2800), 180, size=28)):
            yield batch[: 4 + step * 11 % 25]

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


def heavy_tailed_targets(job: Job) -> None:
    """Measurements with heavy tails: a few rows are far off in every epoch, by nature."""
    seed_all()
    model = network()

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(200):
            x, y = measurements(step)
            generator = torch.Generator().manual_seed(step)
            normal = torch.randn(4, 16, 1, generator=generator)
            spread = (normal[1:].square().sum(0) / 3).sqrt()
            yield x, y + 0.3 * normal[0] / spread

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.smooth_l1_loss(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


def huggingface_cosine_with_restarts(job: Job) -> None:
    """The rate goes back to its height three times, on purpose."""
    huggingface(
        job,
        lr_scheduler_type="cosine_with_restarts",
        lr_scheduler_kwargs={"num_cycles": 3},
        max_steps=180,
    ).train()


def lightning_with_validation(job: Job) -> None:
    """Much dropout, small batches, a validation every 40 batches."""
    module = lightning_module(gpt(dropout=0.3), next_token_loss)

    def validate(batch: Tensor, batch_idx: int) -> Tensor:  # noqa: ARG001
        return next_token_loss(module.model, batch)

    module.validation_step = validate
    nn.init.normal_(module.model.head.weight, std=0.02)
    trainer = lightning(job, steps=200, decode=decode, val_check_interval=40)
    trainer.fit(module, loader(blocks(), 6), loader(blocks(num=32, seed=9), shuffle=False))


CASES = (
    control(rare_class),
    control(mixed_corpus),
    control(pretrained_start),
    control(many_epochs_over_little, also_true="loss_collapse"),
    control(mixture_that_shifts),
    control(batches_of_many_sizes),
    control(heavy_tailed_targets),
    control(huggingface_cosine_with_restarts, host="huggingface"),
    control(lightning_with_validation, host="lightning"),
)

if __name__ == "__main__":
    main(CASES)
