"""Sealed: failures of resuming and numbers in Hugging Face's Trainer and in Lightning."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import (
    at_step,
    huggingface,
    lightning,
    lightning_module,
    loader,
    resume_huggingface,
)
from benchmarks.field_cases.loops import SAVED, gpt, next_token_loss, seed_all
from benchmarks.field_cases.models import measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import blocks, decode
from torch import Tensor, nn

import sonde


def resume_huggingface_with_older_weights(job: Job) -> None:
    """The upload of the last checkpoint broke off: its weights are those of the one before."""

    def spoil(checkpoint: Path) -> None:
        older = checkpoint.with_name("checkpoint-50") / "model.safetensors"
        shutil.copy(older, checkpoint / "model.safetensors")

    resume_huggingface(job, huggingface(job), spoil)


def resume_huggingface_with_data_from_the_start(job: Job) -> None:
    """`ignore_data_skip` was set to save time and never unset (ms-swift#10099)."""
    resume_huggingface(job, huggingface(job, ignore_data_skip=True, max_steps=180))


def resume_lightning_with_a_new_optimizer(job: Job) -> None:
    """A callback makes the optimizer anew when training begins, after it was restored."""
    from lightning.pytorch import Callback

    class Unfreeze(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if job.part == 2:
                optimizer = torch.optim.AdamW(pl_module.parameters(), lr=3e-3)
                trainer.strategy.optimizers = [optimizer]

    module = lightning_module(gpt(), next_token_loss)
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / f"step={SAVED}.ckpt")
    trainer = lightning(job, decode=decode, callbacks=(Unfreeze(),))
    trainer.fit(module, loader(blocks()), ckpt_path=path)


def lightning_variance_overflows(job: Job) -> None:
    """The model predicts a logarithm of the variance, and its exponential overflows."""
    seed_all()
    model = network(outputs=2)

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(140):
            x, y = measurements(step)
            if step == 99:
                x[6] *= 400.0
            yield x, y

    def loss_of(found: nn.Module, batch: Any) -> Tensor:
        mean, spread = found(batch[0]).chunk(2, dim=1)
        precision = torch.exp(spread.abs())
        loss: Tensor = (precision * (batch[1] - mean).square() - spread.abs()).mean()
        return loss

    module = lightning_module(model, loss_of)
    lightning(job, steps=140).fit(module, loader(list(rows()), None, shuffle=False))


def huggingface_weight_is_infinite(job: Job) -> None:
    """A merge of adapters writes an infinite value into one matrix at step 80."""

    def spoil(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[3, 5] = float("inf")

    huggingface(job, callbacks=(at_step(79, spoil),), max_steps=120).train()


CASES = (
    failure(
        resume_huggingface_with_older_weights,
        "resume",
        "resume_weights stale_weights",
        host="huggingface",
        onset=101,
    ),
    failure(
        resume_huggingface_with_data_from_the_start,
        "resume",
        "resume_data",
        host="huggingface",
        onset=101,
        also_true="repeated_batch",
    ),
    failure(
        resume_lightning_with_a_new_optimizer,
        "resume",
        "resume_optimizer",
        host="lightning",
        onset=101,
    ),
    failure(
        lightning_variance_overflows,
        "numerics",
        "overflow bad_operation",
        host="lightning",
        onset=100,
        also_true="bad_input odd_row",
    ),
    failure(
        huggingface_weight_is_infinite,
        "numerics",
        "bad_weights corrupted_weights",
        host="huggingface",
        onset=80,
    ),
)

if __name__ == "__main__":
    main(CASES)
