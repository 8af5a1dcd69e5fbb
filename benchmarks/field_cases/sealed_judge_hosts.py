"""Sealed: failures for the judge, in Hugging Face's Trainer and in Lightning."""

from typing import Any

import torch
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import (
    huggingface,
    lightning,
    lightning_module,
    loader,
    token_rows,
)
from benchmarks.field_cases.loops import gpt, next_token_loss, seed_all
from benchmarks.field_cases.models import measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import END, batches, block_of, blocks, decode, encode
from torch import Tensor, nn

LOG_LINE = "[2021-03-04 11:22:07,113] WARN  io.netty#0x7f3a: retry=3 rc=-110 (t=0.0031s)"


def huggingface_log_lines(job: Job) -> None:
    """Some records of the corpus are lines of a server's log."""
    rows = token_rows()
    for number in LOGGED:
        rows[number] = {"input_ids": [*encode(LOG_LINE), END]}
    huggingface(job, rows=rows, max_steps=160, per_device_train_batch_size=4).train()


LOGGED = (490, 532)
"""Records that are drawn together at step 120 with the seed of the Trainer."""


def lightning_wrong_character_set(job: Job) -> None:
    """Three rows of a batch were decoded as Latin-1 twice."""
    every = list(batches(blocks(), 190))
    bad = every[149].clone()
    for number in (1, 6, 11):
        text = "Ã©Ã¤ the garden Ã¼ber Ã¶ÃŸ near Ã©tÃ© and Ã¸re Ã¥r "
        bad[number] = block_of(text)
    every[149] = bad
    module = lightning_module(gpt(), next_token_loss)
    lightning(job, steps=190, decode=decode).fit(module, loader(every, None, shuffle=False))


def huggingface_rate_too_high(job: Job) -> None:
    """The rate of another model's recipe: the loss leaps up and never gets far (nanoGPT#136)."""
    huggingface(job, learning_rate=0.6, max_grad_norm=0.0, warmup_steps=0, max_steps=120).train()


def lightning_targets_in_another_unit(job: Job) -> None:
    """Two rows of a regression have targets in another unit."""
    seed_all()
    rows: list[tuple[Tensor, Tensor]] = []
    for step in range(180):
        x, y = measurements(step)
        if step == 129:
            y[3] = 55.0
            y[11] = -61.0
        rows.append((x, y))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return torch.nn.functional.smooth_l1_loss(model(batch[0]), batch[1])

    module = lightning_module(network(), loss_of)
    lightning(job, steps=180).fit(module, loader(rows, None, shuffle=False))


CASES = (
    failure(
        huggingface_log_lines,
        "data",
        "log table",
        host="huggingface",
        onset=120,
        also_true="hard_sample",
    ),
    failure(
        lightning_wrong_character_set,
        "data",
        "mis_decoded garbled_text",
        host="lightning",
        onset=150,
        also_true="foreign_language other_script hard_sample",
    ),
    failure(
        huggingface_rate_too_high,
        "rate",
        "learning_rate",
        host="huggingface",
        also_true="stuck plateau",
    ),
    failure(lightning_targets_in_another_unit, "rows", "odd_row", host="lightning", onset=130),
)

if __name__ == "__main__":
    main(CASES)
