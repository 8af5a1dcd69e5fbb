"""Failures to tune on, in any host: one more each of the classes that have few."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import (
    huggingface,
    lightning,
    lightning_module,
    loader,
    token_rows,
)
from benchmarks.field_cases.loops import (
    adamw,
    gpt,
    next_token_loss,
    parts,
    read_checkpoint,
    resume_training,
    seed_all,
    train,
)
from benchmarks.field_cases.models import Pictures, measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import END, blocks, encode
from torch import Tensor, nn

MARKUP = '<div class="nav"><a href="/index.php?id=12&amp;lang=en">[edit]</a></div><br/>'
MARKED_UP = (21, 427, 469, 532)
"""Records that the Trainer draws together at step 60, with its seed."""


def resume_with_data_skipped_too_far(job: Job) -> None:
    """Batches are skipped by the loader and by the script: the position is twice as far."""
    whole = parts()
    whole.first_batch = 200
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job)))


def weights_too_coarse_for_the_rate(job: Job) -> None:
    """The whole model is cast to bfloat16, and the rate is small (smol-course#61)."""
    seed_all()
    model = network().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-6, weight_decay=0.0)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0].bfloat16()).float(), batch[1])

    every = (measurements(step) for step in range(140))
    train(job, model, optimizer, loss_of, every, has_text=False)


def only_the_first_rows_are_drawn(job: Job) -> None:
    """The index wraps at the batch count instead of the row count: 75 rows are seen for ever."""
    model = gpt()
    rows = blocks()
    num_batches = len(rows) // 16

    def drawn() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(2)
        for _ in range(180):
            yield rows[torch.randint(0, num_batches, (16,), generator=generator)]

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), drawn())


def huggingface_markup_rows(job: Job) -> None:
    """Half of a batch is the navigation of web pages."""
    rows = token_rows()
    for number in MARKED_UP:
        rows[number] = {"input_ids": [*encode(MARKUP), END]}
    huggingface(job, rows=rows, max_steps=78).train()


def huggingface_warm_up_in_tokens(job: Job) -> None:
    """The warm-up was meant in tokens and is counted in steps: the rate stays near zero."""
    huggingface(job, warmup_steps=2_000_000, max_steps=120).train()


def lightning_wrong_labels(job: Job) -> None:
    """Four of sixteen labels of one batch are wrong."""
    pictures = Pictures(num=3200, noise=1.0)
    seed_all()
    rows: list[tuple[Tensor, Tensor]] = []
    for step in range(160):
        x, y = pictures.batch(step)
        if step == 119:
            y = y.clone()
            y[4:8] = (y[4:8] + 1) % 4
        rows.append((x.flatten(1), y))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    module = lightning_module(network(inputs=144, outputs=4), loss_of)
    lightning(job, steps=160).fit(module, loader(rows, None, shuffle=False))


CASES = (
    failure(resume_with_data_skipped_too_far, "resume", "resume_data", onset=101),
    failure(
        weights_too_coarse_for_the_rate,
        "precision",
        "half_precision_updates does_not_move",
        also_true="plateau learning_rate",
    ),
    failure(
        only_the_first_rows_are_drawn,
        "order",
        "repeated_batch repeated_rows",
        onset=6,
        also_true="loss_collapse",
    ),
    failure(
        huggingface_markup_rows,
        "data",
        "markup",
        host="huggingface",
        onset=60,
        also_true="code hard_sample",
    ),
    failure(
        huggingface_warm_up_in_tokens,
        "rate",
        "learning_rate rate_zero",
        host="huggingface",
        also_true="plateau does_not_move",
    ),
    failure(lightning_wrong_labels, "rows", "odd_row", host="lightning", onset=120),
)

if __name__ == "__main__":
    main(CASES)
