"""Sealed, second set: trainings with which nothing is wrong, and that tempt to blame samples."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    houses,
    reports,
    stripes,
    to_bytes,
    waves,
    window,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say, watched
from benchmarks.field_cases.second_models import VAE, NanoLM, StripeNet, WordLSTM, mlp
from benchmarks.field_cases.texts import sentences
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde


def three_pictures_in_the_last_batch(job: Job) -> None:
    """`drop_last` is off: every thirtieth batch has three pictures, and BatchNorm feels it."""
    begin(171)
    pictures, labels = stripes(699, noise=1.2)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = DataLoader(
        TensorDataset(pictures, labels),
        24,
        shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )

    def epochs() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(8):
            yield from batches

    over(
        job,
        model,
        optimizer,
        epochs(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
    )


def two_rows_a_batch(job: Job) -> None:
    """Batches of two short rows: the loss leaps from one to the next."""
    begin(172)
    stream = byte_stream()
    model = NanoLM(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, step, size=2, block=20),
        400,
        decode=from_bytes,
    )


def rewards_that_come_rarely(job: Job) -> None:
    """A policy gradient: one action in ten is rewarded, and the loss is spiky by nature."""
    begin(173)
    policy = mlp(12, 32, 6)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, policy, optimizer)

    def train_step(seen: Tensor) -> Tensor:
        chances = torch.log_softmax(policy(seen), dim=1)
        acted = torch.multinomial(chances.detach().exp(), 1)
        reward = 5.0 * (acted.squeeze(1) == (seen[:, 0] > 1.0).long() * 4).float() - 0.5
        chosen = chances.gather(1, acted).squeeze(1)
        loss = recorder.loss(-(reward * chosen).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(350):
        say(step + 1, recorder.step(train_step, houses(step, 16)[0]))
    recorder.close()


def trained_before_on_the_same_text(job: Job) -> None:
    """The training goes on from weights that know the text: its loss is low from the start."""
    begin(174)
    stream = byte_stream(1500)
    model = NanoLM()
    before = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(200):
        rows = window(stream, step, size=12, block=32)
        model(rows[:, :-1], rows[:, 1:])[1].backward()
        before.step()
        before.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, 1000 + step, size=8, block=32),
        220,
        decode=from_bytes,
    )


def divergence_is_phased_in(job: Job) -> None:
    """The weight of a VAE's second term rises from 0 to its height over 150 steps, as planned."""
    begin(175)
    series = waves(1600)
    model = VAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, float]) -> Tensor:
        shown, weight = batch
        made, mean, log_variance = model(shown)
        apart = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        loss: Tensor = recorder.loss(F.mse_loss(made, shown) + weight * apart)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(300):
        weight = 0.02 * min(1.0, max(0.0, (step - 60) / 150))
        batch = (series[epoch_order(1600, step, 24)], weight)
        say(step + 1, recorder.step(train_step, batch))
    recorder.close()


def vocabulary_of_thousands(job: Job) -> None:
    """Most of 3,000 words are rare: the loss is far below the logarithm of the vocabulary soon."""
    begin(176)
    weights = 1.0 / torch.arange(1, 3000).float() ** 1.3
    dice = torch.Generator().manual_seed(6)
    words = 1 + torch.multinomial(weights, 1500 * 17, replacement=True, generator=dice)
    rows = words.view(1500, 17)
    rows[:, 1::2] = (rows[:, ::2][:, :8] * 7) % 2999 + 1
    model = WordLSTM(3000, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    batches = (rows[epoch_order(1500, step, 12)] for step in range(180))
    over(job, model, optimizer, batches, loss_of, clip=1.0)


def lightning_pictures_are_blended(job: Job) -> None:
    """Mixup: pictures and labels are blended two by two, so that no loss goes to zero."""
    begin(177)
    pictures, labels = stripes(noise=0.8)
    known = F.one_hot(labels, 5).float()

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        shown, kinds = batch
        share = torch.rand(1)
        blended = share * shown + (1 - share) * shown.flip(0)
        return F.cross_entropy(model(blended), share * kinds + (1 - share) * kinds.flip(0))

    module = lightning_module(StripeNet(), loss_of, lr=2e-3)
    lightning(job, steps=260).fit(module, loader(TensorDataset(pictures, known), 32))


def second_task_is_phased_in(job: Job) -> None:
    """A second task's weight rises from 0 at step 120 to 1 at step 200, as planned."""
    begin(178)
    trunk = mlp(12, 32, 32)
    price_head = nn.Linear(32, 1)
    sold_head = nn.Linear(32, 1)
    model = nn.ModuleDict({"trunk": trunk, "price": price_head, "sold": sold_head})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(300):
            columns, price = houses(step)
            weight = torch.tensor(min(1.0, max(0.0, (step - 120) / 80)))
            yield {"x": columns, "price": price, "weight": weight}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        states = F.relu(trunk(batch["x"]))
        sold = (batch["x"][:, 8] * batch["x"][:, 9] > 0).float()
        first = F.mse_loss(price_head(states).squeeze(1), batch["price"])
        second = F.binary_cross_entropy_with_logits(sold_head(states).squeeze(1), sold)
        return first + batch["weight"] * second

    watched(job, model, optimizer, batches(), loss_of)


def rows_of_very_unlike_length(job: Job) -> None:
    """Most rows are one report, some are four: batches are padded to their longest row."""
    begin(179)
    texts = reports(1200) + sentences(400)
    dice = torch.Generator().manual_seed(5)
    model = NanoLM(block=160)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def drawn(step: int) -> Tensor:
        found: list[list[int]] = []
        for number in epoch_order(len(texts), step, 8).tolist():
            tail = float(torch.rand(1, generator=dice))
            num_texts = min(4, int(0.25 / (1.001 - tail)) + 1)
            found.append(to_bytes(" ".join(texts[number : number + num_texts]))[:150])
        rows = torch.full((8, max(map(len, found))), PADDING)
        for row, tokens in zip(rows, found, strict=True):
            row[: len(tokens)] = torch.tensor(tokens)
        return rows

    def loss_of(rows: Tensor) -> Tensor:
        labels = rows[:, 1:].masked_fill(rows[:, 1:] == PADDING, -1)
        loss: Tensor = model(rows[:, :-1], labels)[1]
        return loss

    over(job, model, optimizer, map(drawn, range(150)), loss_of, clip=1.0, decode=from_bytes)


def rare_and_heavy(job: Job) -> None:
    """One row in thirty is positive and weighs thirty times as much."""
    begin(180)
    model = mlp(12, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weight = torch.tensor(30.0)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(300):
            columns, _ = houses(step, 24)
            yield {"x": columns, "fraud": (columns[:, :3].sum(1) > 3.2).float()}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            model(batch["x"]).squeeze(1), batch["fraud"], pos_weight=weight
        )

    over(job, model, optimizer, batches(), loss_of)


CASES = (
    control(three_pictures_in_the_last_batch),
    control(two_rows_a_batch),
    control(rewards_that_come_rarely),
    control(trained_before_on_the_same_text),
    control(divergence_is_phased_in),
    control(vocabulary_of_thousands),
    control(lightning_pictures_are_blended, host="lightning"),
    control(second_task_is_phased_in),
    control(rows_of_very_unlike_length),
    control(rare_and_heavy),
)

if __name__ == "__main__":
    main(CASES)
