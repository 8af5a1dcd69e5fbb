"""Sealed, second set: precision, order and connection."""

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    stripes,
    tagged,
    window,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say
from benchmarks.field_cases.second_models import LowRank, NanoLM, StripeNet, WordEncoder, mlp
from torch import Tensor

import sonde


# ---------------------------------------------------------------- precision
def unscaled_after_clipping(job: Job) -> None:
    """Gradients are clipped, then unscaled: almost nothing is left of them (ijepa#64)."""
    begin(131)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=2000)
    with sonde.Recorder(job.run, model, optimizer, decode=from_bytes, scaler=scaler) as recorder:

        def train_step(rows: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        for step in range(150):
            say(step + 1, recorder.step(train_step, window(stream, step, size=8, block=32)))


def small_gradients_without_a_scaler(job: Job) -> None:
    """Autocast to float16 without a scaler; targets are tiny, and gradients round to zero
    (Open-Rig3R#35).
    """
    begin(132)
    model = mlp(12, 48, 48, 1)
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter.zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        columns, price = batch
        with torch.autocast("cpu", torch.float16):
            found = model(columns).squeeze(1)
        return F.mse_loss(found.float(), price * 1e-7)

    over(job, model, optimizer, (houses(step, 64) for step in range(150)), loss_of)


# ---------------------------------------------------------------- order
def seeded_in_every_call(job: Job) -> None:
    """`get_batch` seeds the generator in each call, so that every batch is the same (VILA#123)."""
    begin(133)
    stream = byte_stream()
    model = NanoLM(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def draw(_: int) -> Tensor:
        dice = random.Random(1337)
        starts = [dice.randrange(len(stream) - 41) for _ in range(12)]
        return torch.stack([stream[start : start + 41] for start in starts])

    nano(job, model, optimizer, draw, 160, decode=from_bytes)


def table_sorted_by_price(job: Job) -> None:
    """The rows of a table come in the order of their target, since the export was sorted
    (NeMo-RL#239).
    """
    begin(134)
    every = [houses(step) for step in range(50)]
    columns = torch.cat([found[0] for found in every])
    price = torch.cat([found[1] for found in every])
    order = price.argsort()
    model = mlp(12, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def epochs() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(4):
            for chosen in order.split(32):
                yield columns[chosen], price[chosen]

    over(
        job,
        model,
        optimizer,
        epochs(),
        lambda batch: F.mse_loss(model(batch[0]).squeeze(1), batch[1]),
    )


# ---------------------------------------------------------------- connection
def loss_made_into_a_new_tensor(job: Job) -> None:
    """Two losses are added as numbers, and their sum is made a new tensor (DiffRate#7)."""
    begin(135)
    pictures, labels = stripes(noise=1.0)
    model = StripeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = model(batch[0])
        fit = F.cross_entropy(scores, batch[1])
        size = scores.square().mean()
        return torch.tensor(fit.item() + 0.01 * size.item(), requires_grad=True)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(150):
            chosen = epoch_order(len(labels), step, 24)
            yield pictures[chosen], labels[chosen]

    over(job, model, optimizer, batches(), loss_of)


def encoder_without_gradients(job: Job) -> None:
    """`with torch.no_grad()` was left around the encoder after a test of its speed (VeOmni#118)."""
    begin(136)
    words, tags = tagged()
    model = WordEncoder(outputs=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            states = model.states(batch[0], batch[0] == 0)
        scores = model.head(states)
        return F.cross_entropy(scores.flatten(0, 1), batch[1].flatten(), ignore_index=0)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(150):
            chosen = epoch_order(len(words), step, 16)
            yield words[chosen], tags[chosen]

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


def adapters_after_the_optimizer(job: Job) -> None:
    """The adapters are put in after the optimizer was made: what it has is frozen, and they are
    not in it (VeOmni#118).
    """
    begin(137)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("ln_f")
    for layer in model.h:
        layer.c_fc = LowRank(layer.c_fc)
        layer.c_proj = LowRank(layer.c_proj)
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, step, size=12, block=40),
        150,
        decode=from_bytes,
    )


CASES = (
    failure(
        unscaled_after_clipping,
        "precision",
        "clipped_scaled_gradient",
        also_true="plateau",
    ),
    failure(
        small_gradients_without_a_scaler,
        "precision",
        "underflow no_gradient does_not_move",
        also_true="plateau half_precision_updates",
    ),
    failure(seeded_in_every_call, "order", "repeated_batch", onset=2, also_true="loss_collapse"),
    failure(table_sorted_by_price, "order", "not_shuffled"),
    failure(
        loss_made_into_a_new_tensor,
        "connection",
        "no_gradient does_not_move",
        also_true="plateau",
    ),
    failure(encoder_without_gradients, "connection", "no_gradient", also_true="does_not_move"),
    failure(
        adapters_after_the_optimizer,
        "connection",
        "not_in_optimizer",
        also_true="does_not_move plateau no_gradient few_trainable",
    ),
)

if __name__ == "__main__":
    main(CASES)
