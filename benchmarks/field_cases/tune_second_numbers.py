"""Failures to tune on, of the second set: numerics, precision, rate, texts and rows."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    spoiled_at,
    stripes,
    to_bytes,
    waves,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say, watched
from benchmarks.field_cases.second_models import NanoLM, StripeNet, WordLSTM, mlp
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- numerics
def weights_begin_far_too_large(job: Job) -> None:
    """`std=0.02` was read as 2.0: the first loss is many times the logarithm of the vocabulary
    (OLMo#560).
    """
    begin()
    stream = byte_stream()
    model = NanoLM(std=2.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = lambda step: window(stream, step, size=12, block=48)  # noqa: E731
    nano(job, model, optimizer, draw, 160, decode=from_bytes, config={"init_std": 2.0})


def cross_entropy_by_hand(job: Job) -> None:
    """`y * log(p) + (1 - y) * log(1 - p)`: a probability becomes exactly 1, and 0 times infinity is
    no number (pytorch#31829).
    """
    begin(8)
    model = mlp(12, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        columns, sold = batch
        chance = torch.sigmoid(model(columns).squeeze(1))
        return -(sold * chance.log() + (1 - sold) * (1 - chance).log()).mean()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(260):
            columns, _ = houses(step)
            yield columns, (columns[:, 0] + columns[:, 1] > 0).float()

    over(job, model, optimizer, batches(), loss_of)


def distance_of_two_equal_pictures(job: Job) -> None:
    """A picture stands in a batch twice: the gradient of their distance's root is no number
    (pytorch#4320).
    """
    begin(9)
    pictures, labels = stripes(num_classes=4)
    model = StripeNet(num_classes=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        shown, kinds = batch
        places = model(shown)
        apart = places.unsqueeze(0) - places.unsqueeze(1)
        others = ~torch.eye(len(kinds), dtype=torch.bool)
        distance = apart[others].square().sum(-1).sqrt()
        same = (kinds.unsqueeze(0) == kinds.unsqueeze(1))[others]
        return torch.where(same, distance, F.relu(2.0 - distance)).mean()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(200):
            chosen = epoch_order(len(labels), step, 16)
            if step == 149:
                chosen[11] = chosen[4]
            yield pictures[chosen], labels[chosen]

    watched(job, model, optimizer, batches(), loss_of)


def squares_are_summed_in_half_precision(job: Job) -> None:
    """A penalty on the states is summed in float16; with longer rows it passes 65,504
    (openfold#222).
    """
    begin(10)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(rows: Tensor) -> Tensor:
        states = model.hidden(rows[:, :-1])
        penalty = states.half().square().sum().float() / states.numel()
        logits = model.lm_head(states)
        return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) + 0.01 * penalty

    def batches() -> Iterator[Tensor]:
        for step in range(180):
            yield window(stream, step, size=16, block=32 if step < 129 else 64)

    over(job, model, optimizer, batches(), loss_of, clip=1.0, decode=from_bytes)


# ---------------------------------------------------------------- precision
def recurrent_network_in_bfloat16(job: Job) -> None:
    """`model.to(torch.bfloat16)` and a rate for fine-tuning: updates round to nothing (AiM#10)."""
    begin(11)
    rows = word_rows()
    model = WordLSTM().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-6, weight_decay=0.0)

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(
            logits.float().flatten(0, 1), batch[:, 1:].flatten(), ignore_index=PADDING
        )

    batches = (rows[epoch_order(len(rows), step, 16)] for step in range(150))
    over(job, model, optimizer, batches, loss_of, decode=from_words)


def lightning_with_true_bfloat16(job: Job) -> None:
    """`precision="bf16-true"` where `"bf16-mixed"` was meant, with a small rate (eole#133)."""
    begin(12)
    stream = byte_stream(1200)
    rows = torch.cat([window(stream, step, size=16, block=32) for step in range(40)])

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    module = lightning_module(NanoLM(), loss_of, lr=2e-6)
    trainer = lightning(job, steps=150, decode=from_bytes, precision="bf16-true")
    trainer.fit(module, loader(rows, 8))


# ---------------------------------------------------------------- rate
def warm_up_counts_epochs(job: Job) -> None:
    """A warm-up of 5,000 steps is stepped once an epoch: the rate is 0, then nearly so
    (k-diffusion#50).
    """
    begin(13)
    pictures, labels = stripes(640)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5000))
    criterion = nn.CrossEntropyLoss()
    with sonde.Recorder(job.run, model, optimizer, scheduler=scheduler) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            loss: Tensor = criterion(model(batch[0]), batch[1])
            recorder.loss(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for epoch in range(5):
            for number in range(40):
                chosen = epoch_order(640, epoch * 40 + number, 16)
                loss = recorder.step(train_step, (pictures[chosen], labels[chosen]))
                say(epoch * 40 + number + 1, loss)
            scheduler.step()


# ---------------------------------------------------------------- texts
FRENCH = (
    "Le navire a quitte le port hier soir et personne ne sait quand il reviendra de son voyage. ",
    "Les marins attendaient devant la vieille douane pendant que la pluie tombait sur les quais. ",
    "Il faudrait encore trois semaines avant que la glace ne fonde dans le golfe, disait-on. ",
)


def french_rows_in_an_english_corpus(job: Job) -> None:
    """Four of twelve rows come from the French part of a crawl (MAmmoTH#36)."""
    begin(14)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def spoil(rows: Tensor) -> Tensor:
        for number, text in zip((1, 4, 7, 10), (*FRENCH, FRENCH[0]), strict=True):
            rows[number] = torch.tensor(to_bytes(text + text)[: rows.shape[1]])
        return rows

    draw = spoiled_at(190, lambda step: window(stream, step, size=12, block=60), spoil)
    nano(job, model, optimizer, draw, 220, decode=from_bytes)


NOTICE = "Permission is hereby granted, free of charge, to any person obtaining a copy of this file"


def one_notice_in_many_rows(job: Job) -> None:
    """The same licence notice is six of sixteen rows (LlamaFactory#5247)."""
    begin(15)
    stream = byte_stream()
    model = NanoLM(width=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))

    def spoil(rows: Tensor) -> Tensor:
        rows[5:11] = torch.tensor(to_bytes(NOTICE)[: rows.shape[1]])
        return rows

    draw = spoiled_at(160, lambda step: window(stream, step, size=16, block=56), spoil)
    nano(job, model, optimizer, draw, 190, decode=from_bytes)


# ---------------------------------------------------------------- rows without text
def sound_that_was_not_scaled(job: Job) -> None:
    """One sound of a batch keeps the integers of its file, up to 32,767 (DEVIANT#2)."""
    begin(16)
    series = waves(1600)
    model = nn.GRU(1, 32, batch_first=True)
    head = nn.Linear(32, 1)
    both = nn.ModuleDict({"gru": model, "head": head})
    optimizer = torch.optim.Adam(both.parameters(), lr=2e-3)

    def loss_of(batch: Tensor) -> Tensor:
        states, _ = model(batch[:, :-1, None])
        return F.mse_loss(head(states).squeeze(2), batch[:, 1:])

    def spoil(batch: Tensor) -> Tensor:
        batch[6] = (batch[6] * 16000).round()
        return batch

    draw = spoiled_at(150, lambda step: series[epoch_order(1600, step, 20)], spoil)
    over(job, both, optimizer, (draw(step) for step in range(180)), loss_of, clip=5.0)


CASES = (
    failure(weights_begin_far_too_large, "numerics", "bad_init initial_loss", also_true="plateau"),
    failure(cross_entropy_by_hand, "numerics", "bad_operation overflow", onset=116),
    failure(
        distance_of_two_equal_pictures,
        "numerics",
        "bad_operation",
        onset=150,
        also_true="bad_input repeated_batch odd_row",
    ),
    failure(
        squares_are_summed_in_half_precision,
        "numerics",
        "overflow bad_operation precision_overflow",
        onset=130,
    ),
    failure(
        recurrent_network_in_bfloat16,
        "precision",
        "half_precision_updates does_not_move",
        also_true="plateau learning_rate",
    ),
    failure(
        lightning_with_true_bfloat16,
        "precision",
        "half_precision_updates does_not_move",
        host="lightning",
        also_true="plateau learning_rate",
    ),
    failure(
        warm_up_counts_epochs,
        "rate",
        "learning_rate rate_zero",
        also_true="plateau does_not_move",
    ),
    failure(
        french_rows_in_an_english_corpus,
        "data",
        "foreign_language",
        onset=190,
        also_true="hard_sample",
    ),
    failure(
        one_notice_in_many_rows,
        "data",
        "duplicated_text",
        onset=160,
        also_true="hard_sample repetition repeated_batch",
    ),
    failure(sound_that_was_not_scaled, "rows", "odd_row bad_input", onset=150),
)

if __name__ == "__main__":
    main(CASES)
