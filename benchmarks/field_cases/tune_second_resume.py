"""Failures to tune on, of the second set: resumes."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    spelled,
    stripes,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import Session, begin
from benchmarks.field_cases.second_models import NanoLM, Reverser, StripeNet, WordLSTM
from torch import Tensor
from torch.optim.lr_scheduler import StepLR


def resume_at_the_rate_of_the_command_line(job: Job) -> None:
    """After loading, `group["lr"] = args.lr`: it had been decayed thrice (distiller#145).

    The schedule multiplies what it finds, so the rate stays 40 times too high.
    """
    begin(2)
    rows = word_rows()
    model = WordLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = StepLR(optimizer, step_size=29, gamma=0.3)

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)

    session = Session(
        model, optimizer, lambda step: rows[epoch_order(len(rows), step, 24)], loss_of
    )
    session.named = {"scheduler": scheduler}
    session.decode = from_words

    def load(state: dict[str, Any]) -> int:
        step = session.load(state)
        for group in optimizer.param_groups:
            group["lr"] = 5e-3
        return step

    session.run(job, load)


def resume_without_running_statistics(job: Job) -> None:
    """The checkpoint has `named_parameters()` alone, so BatchNorm forgets what it saw (nn#1165)."""
    begin(3)
    pictures, labels = stripes(noise=1.8)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = epoch_order(len(labels), step, 32)
        return pictures[chosen], labels[chosen]

    session = Session(
        model, optimizer, draw, lambda batch: F.cross_entropy(model(batch[0]), batch[1])
    )
    session.saved = 75
    session.killed = 100

    def save(step: int) -> dict[str, Any]:
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        return {**session.state(step), "model": weights}

    def load(state: dict[str, Any]) -> int:
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(state["model"][name])
        return session.load(state, "model")

    session.run(job, load, save=save)


def resume_with_a_renamed_encoder(job: Job) -> None:
    """The encoder has another name in the new version of the script; `strict=False` leaves it new
    (ms-swift#10099).
    """
    begin(4)
    model = Reverser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        logits = model(source, target[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)

    session = Session(model, optimizer, spelled, loss_of)
    session.saved = 140
    session.killed = 150
    session.last = 220

    def load(state: dict[str, Any]) -> int:
        found = {
            name.replace("body.encoder", "encoder"): value for name, value in state["model"].items()
        }
        model.load_state_dict(found, strict=False)
        return session.load(state, "model")

    session.run(job, load)


def resume_from_weights_saved_in_half_precision(job: Job) -> None:
    """The checkpoint's weights were written as bfloat16 to save space (torchtune#2254)."""
    begin(5)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = Session(
        model,
        optimizer,
        lambda step: window(stream, step, size=12, block=48),
        lambda rows: model(rows[:, :-1], rows[:, 1:])[1],
    )
    session.decode = from_bytes

    def save(step: int) -> dict[str, Any]:
        short = {name: value.bfloat16() for name, value in model.state_dict().items()}
        return {**session.state(step), "model": short}

    session.run(job, save=save)


def resume_with_parameters_in_another_order(job: Job) -> None:
    """The new script lists the layers from the top down: each gets the moments of another
    (CenterNet-HarDNet#10).
    """
    begin(6)
    stream = byte_stream()
    model = NanoLM(num_layers=3, dropout=0.1)
    layers = list(model.h) if job.part == 1 else list(reversed(model.h))
    rest = [value for name, value in model.named_parameters() if not name.startswith("h.")]
    groups: list[dict[str, Any]] = [
        {"params": [value for layer in layers for value in layer.parameters()]},
        {"params": rest, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=4e-3)
    session = Session(
        model,
        optimizer,
        lambda step: window(stream, step, size=8, block=40),
        lambda rows: model(rows[:, :-1], rows[:, 1:])[1],
    )
    session.saved = 105
    session.killed = 125
    session.last = 185
    session.decode = from_bytes
    session.run(job)


CASES = (
    failure(
        resume_at_the_rate_of_the_command_line,
        "resume",
        "resume_schedule learning_rate",
        onset=91,
    ),
    failure(resume_without_running_statistics, "resume", "resume_weights", onset=76),
    failure(resume_with_a_renamed_encoder, "resume", "resume_weights", onset=141),
    failure(resume_from_weights_saved_in_half_precision, "resume", "resume_weights", onset=91),
    failure(resume_with_parameters_in_another_order, "resume", "resume_optimizer", onset=106),
)

if __name__ == "__main__":
    main(CASES)
