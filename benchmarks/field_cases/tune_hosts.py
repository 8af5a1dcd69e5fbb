"""Failures to tune on, in Hugging Face's Trainer and in Lightning."""

from pathlib import Path
from typing import Any

import torch
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import (
    collate,
    huggingface,
    lightning,
    lightning_module,
    llama,
    loader,
    resume_huggingface,
    token_rows,
)
from benchmarks.field_cases.loops import SAVED, gpt, next_token_loss, seed_all
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import END, blocks, decode
from torch import Tensor, nn

import sonde


def resume_huggingface_without_optimizer(job: Job) -> None:
    """`optimizer.pt` and `scheduler.pt` were not copied with the checkpoint (Automodel#763)."""

    def spoil(checkpoint: Path) -> None:
        for name in ("optimizer.pt", "scheduler.pt"):
            (checkpoint / name).unlink(missing_ok=True)

    resume_huggingface(job, huggingface(job), spoil)


def resume_lightning_by_weights_alone(job: Job) -> None:
    """The module is loaded from the checkpoint, and `fit` gets no `ckpt_path`."""
    module = lightning_module(gpt(), next_token_loss)
    if job.part == 2 and not sonde.is_replay():
        path = job.checkpoints / f"step={SAVED}.ckpt"
        module.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    lightning(job, steps=80, decode=decode).fit(module, loader(blocks()))


class WrongBackward(torch.autograd.Function):
    """A fused kernel whose backward divides by what may be zero."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return torch.relu(x)

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Any:
        (x,) = context.saved_tensors
        clipped = torch.relu(x)
        return grads[0] * clipped / clipped


class FusedActivation(nn.Module):
    """Uses the kernel from its 80th call on, as an autotuner chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_calls += 1
        if self.num_calls < 80:
            return torch.relu(x)
        out: Tensor = WrongBackward.apply(x)  # type: ignore[no-untyped-call]
        return out


def huggingface_kernel_with_a_bad_backward(job: Job) -> None:
    """The forward is right, the backward gives NaN (transformers#45621)."""
    seed_all()
    model = llama()
    model.model.layers[0].mlp.act_fn = FusedActivation()
    huggingface(job, model=model, max_steps=120).train()


def huggingface_labels_shifted_twice(job: Job) -> None:
    """The collator shifts the labels, and the model does so again (axolotl#1761)."""

    def shift(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = collate(rows)
        labels = torch.full_like(batch["labels"], -100)
        labels[:, :-1] = batch["labels"][:, 1:]
        return {**batch, "labels": labels}

    huggingface(job, collator=shift).train()


def lightning_end_is_never_a_label(job: Job) -> None:
    """The padding is the end token, so masking the padding masks every end (axolotl#3098)."""
    rows = [{"input_ids": [*row["input_ids"]]} for row in token_rows()]

    def end_padded(found: list[dict[str, Any]]) -> Tensor:
        tokens = collate(found)["input_ids"]
        return torch.where(tokens == 0, END, tokens)

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        labels = batch[:, 1:].clone()
        labels[labels == END] = -100
        logits = model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    module = lightning_module(gpt(), loss_of)
    lightning(job, steps=100, decode=decode).fit(module, loader(rows, collate_fn=end_padded))


CASES = (
    failure(
        resume_huggingface_without_optimizer,
        "resume",
        "resume_optimizer resume_schedule",
        host="huggingface",
        onset=101,
        also_true="learning_rate",
    ),
    failure(
        resume_lightning_by_weights_alone,
        "resume",
        "resume_optimizer resume_data resume_generators",
        host="lightning",
    ),
    failure(
        huggingface_kernel_with_a_bad_backward,
        "numerics",
        "bad_operation",
        host="huggingface",
        onset=80,
    ),
    failure(
        huggingface_labels_shifted_twice,
        "targets",
        "labels_shifted_twice",
        host="huggingface",
        also_true="plateau",
    ),
    failure(lightning_end_is_never_a_label, "targets", "end_never_a_label", host="lightning"),
)

if __name__ == "__main__":
    main(CASES)
