"""Failures to tune on, of the third set: numerics, precision, order, rate, texts and rows."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    KINDS,
    STATES,
    clicks,
    corpus,
    cut,
    drawn,
    fitted,
    glyphs,
    loads,
    ratings,
    rewards,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell
from benchmarks.field_cases.third_models import Decoder, Factors, Forecaster, PatchNet, dense
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import sonde


# ---------------------------------------------------------------- numerics
def temperature_falls_too_low(job: Job) -> None:
    """The temperature of a contrastive loss by hand falls by 4 % a step, without a floor: the
    exponential of a likeness over it passes what float32 holds (CLIP#46).
    """
    seed(111)
    model = dense(36, 64, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    series = loads(1500)

    def train_step(batch: tuple[Tensor, float]) -> Tensor:
        rows, temperature = batch
        left = F.normalize(model(rows + 0.1 * torch.randn_like(rows)), dim=1)
        right = F.normalize(model(rows + 0.1 * torch.randn_like(rows)), dim=1)
        likeness = torch.exp(left @ right.t() / temperature)
        loss = -(likeness.diagonal() / likeness.sum(1)).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    with sonde.Recorder(job.run, model, optimizer) as recorder:
        for step in range(1, 161):
            temperature = max(0.5 * 0.96**step, 0.0 if PLANTED else 0.1)
            rows = series[drawn(len(series), step, 32)]
            tell(step, recorder.step(train_step, (rows, temperature)))


def all_weights_begin_at_zero(job: Job) -> None:
    """`init_weights` sets every weight to zero: only the last bias learns (nn init threads)."""
    seed(112)
    model = dense(10, 48, 48, 1)
    if PLANTED:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    fit(
        job,
        model,
        optimizer,
        lambda batch: F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1]),
        clicks,
        200,
    )


class Standardised(nn.Module):
    """Columns are standardised over the batch, then read."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense(10, 32, 32, 1, act=nn.Tanh)

    def forward(self, columns: Tensor) -> Tensor:
        columns = (columns - columns.mean(0)) / (columns.std(0) + 1e-6)
        out: Tensor = self.net(columns).squeeze(1)
        return out


def deviation_of_a_single_row(job: Job) -> None:
    """1,281 rows in batches of 16: the last batch has one row, whose deviation is no number."""
    seed(113)
    columns, clicked = clicks(1, 1281)
    loader = DataLoader(
        TensorDataset(columns, clicked), 16, shuffle=True, drop_last=not PLANTED,
        generator=torch.Generator().manual_seed(2),
    )  # fmt: skip
    model = Standardised()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: list[Tensor]) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = 0
    for _ in range(2):
        for batch in loader:
            step += 1
            tell(step, recorder.step(train_step, batch))
    recorder.close()


def scale_reaches_zero(job: Job) -> None:
    """A forecast has a mean and a scale; the scale goes through a ReLU, reaches exactly 0, and its
    logarithm is taken (CLUB#27).
    """
    seed(114)
    series = loads(1200)
    model = Forecaster(outputs=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    with torch.no_grad():
        model.last.get_parameter("bias")[1] = 1.5

    def loss_of(rows: Tensor) -> Tensor:
        mean, raw = model(rows[:, :-1]).unbind(-1)
        scale = F.relu(raw) if PLANTED else F.softplus(raw) + 1e-3
        total: Tensor = (scale.log() + 0.5 * ((rows[:, 1:] - mean) / scale) ** 2).mean()
        return total

    fit(job, model, optimizer, loss_of, lambda step: series[drawn(1200, step, 24)], 200)


def class_that_is_not_in_the_batch(job: Job) -> None:
    """Each class weighs one over its count in the batch; in one batch a class has none, and zero
    times infinity is no number (vitamin_c#56).
    """
    seed(115)
    pictures, labels = glyphs(1500)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        hot = F.one_hot(batch[1], KINDS).float()
        counts = hot.sum(0) if PLANTED else hot.sum(0).clamp(min=1)
        weights = 1.0 / counts
        per_row = -(hot * model(batch[0]).log_softmax(1) * weights).sum(1)
        total: Tensor = per_row.sum() / KINDS
        return total

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(1500, step, 40)
        return pictures[chosen], labels[chosen]

    fit(job, model, optimizer, loss_of, draw, 160)


# ---------------------------------------------------------------- precision
def autocast_around_the_whole_loop(job: Job) -> None:
    """`with torch.autocast` stands outside the loop: the weights in bfloat16 are cached until it
    ends, so every forward has the matrices of the beginning (TransformerEngine#841).
    """
    seed(116)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    around = torch.autocast("cpu", torch.bfloat16) if PLANTED else nullcontext()
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode)

    def train_step(rows: Tensor) -> Tensor:
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    with around:
        for step in range(1, 151):
            tell(step, recorder.step(train_step, cut(texts.stream, step, 8, 33)))
    recorder.close()


def positions_in_bfloat16(job: Job) -> None:
    """The positions are cast to bfloat16 with the rest: above 256 two neighbours have the same
    one (transformers#29285). Hardly anybody can see it in the loss.
    """
    seed(117)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=32, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    places = torch.arange(383).float()
    if PLANTED:
        places = places.bfloat16().float()

    def loss_of(rows: Tensor) -> Tensor:
        logits = model(rows[:, :-1], places=places)
        return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    fit(job, model, optimizer, loss_of, lambda step: cut(texts.stream, step, 2, 384), 120)


def tables_in_bfloat16(job: Job) -> None:
    """To save memory the table of the words is bfloat16 and the rest is not: at this rate most of
    its updates round to nothing (trl#878).
    """
    seed(118)
    texts = corpus()
    num = len(texts.pieces)
    table = nn.Embedding(num, 48)
    if PLANTED:
        table.bfloat16()
    begun = table.weight.detach().clone()
    cell = nn.GRU(48, 48, batch_first=True)
    head = nn.Linear(48, num)
    model = nn.ModuleDict({"table": table, "cell": cell, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(rows: Tensor) -> Tensor:
        states, _ = cell(table(rows[:, :-1]).float())
        return F.cross_entropy(head(states).flatten(0, 1), rows[:, 1:].flatten())

    draw = lambda step: cut(texts.stream, step, 16, 33)  # noqa: E731
    fit(job, model, optimizer, loss_of, draw, 200, decode=texts.pieces.decode)
    used = torch.unique(texts.stream)
    moved = (table.weight[used] != begun[used]).float().mean()
    print(f"share of the table that ever moved: {float(moved):.3f}")


# ---------------------------------------------------------------- order
def batches_of_one_class(job: Job) -> None:
    """A sampler that groups rows of a kind was written for another loss: each batch has pictures of
    one class alone (VILA#123).
    """
    seed(119)
    pictures, labels = glyphs(960)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 24)
        if PLANTED:
            kind = torch.nonzero(labels == step * 5 % 7 % KINDS).squeeze(1)
            chosen = kind[drawn(len(kind), step, 24)]
        return pictures[chosen], labels[chosen]

    fit(
        job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]), draw, 180
    )  # fmt: skip


def ratings_sorted_by_user(job: Job) -> None:
    """The log is exported user by user and read as it stands: a batch has one or two users
    (NeMo-RL#239).
    """
    seed(120)
    users, items, stars = ratings(6400)
    order = torch.argsort(users) if PLANTED else torch.randperm(6400)
    loader = DataLoader(TensorDataset(users[order], items[order], stars[order]), 32)
    model = Factors()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-2)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(rows: list[Tensor]) -> Tensor:
        loss = F.mse_loss(model(rows[0], rows[1]), rows[2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step, batch in enumerate(loader, 1):
        tell(step, recorder.step(train_step, batch))
    recorder.close()


# ---------------------------------------------------------------- rate
def plateau_counts_batches(job: Job) -> None:
    """`ReduceLROnPlateau(patience=3)` was meant for epochs and is stepped with the loss of each
    batch, which is noisy: the rate is gone after some fifty updates (ViS4mer#4).
    """
    seed(121)
    pictures, labels = glyphs(1200, noise=0.6)
    model = PatchNet(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.1, patience=3, min_lr=0.0)
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=scheduler)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if PLANTED:
            scheduler.step(float(loss))
        return loss

    for step in range(1, 201):
        chosen = drawn(1200, step, 16)
        loss = recorder.step(train_step, (pictures[chosen], labels[chosen]))
        tell(step, loss)
        if step % 20 == 0:
            print("rate", optimizer.param_groups[0]["lr"])
    recorder.close()


# ---------------------------------------------------------------- texts
def language_model(job: Job, text: str, rows: tuple[int, ...], onset: int, steps: int) -> None:
    """A small decoder; at `onset` some rows of 16 are this text."""
    texts = corpus()
    model = Decoder(len(texts.pieces), layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))

    def draw(step: int) -> Tensor:
        batch = cut(texts.stream, step, 16, 41)
        if step == onset and PLANTED:
            for place, row in enumerate(rows):
                batch[row] = fitted(texts.pieces.encode(text[place * 7 :]), 41)
        return batch

    def loss_of(batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    fit(job, model, optimizer, loss_of, draw, steps, decode=texts.pieces.decode)


def rows_of_a_price_list(job: Job) -> None:
    """Three rows of sixteen are columns of numbers from a price list (LlamaFactory#5247)."""
    seed(122)
    table = "1204\t18.50\t3\t0.07\t9981\n1205\t4.95\t12\t0.19\t9975\n1206\t110.00\t1\t0.19\t8812\n"
    language_model(job, table, (2, 7, 11), 150, 180)


def rows_of_a_terminal(job: Job) -> None:
    """Four rows of sixteen are the recording of a terminal, full of control characters
    (MAmmoTH#36).
    """
    seed(123)
    taped = "\x1b[2J\x1b[1;31m\x07\x08\x08\x1b[0m\x1b[K\x00\x00\x02\x1b[12;40H\x7f\x1b[?25l\x0e\x0f"
    language_model(job, taped + "\x1b[1A\x03\x1b[33m\x04", (0, 5, 9, 14), 160, 190)


def rows_that_say_one_word(job: Job) -> None:
    """Five rows of sixteen were written by a model that got stuck on one word
    (LlamaFactory#5247).
    """
    seed(124)
    language_model(job, "obvious " * 9, (1, 3, 8, 10, 13), 140, 170)


# ---------------------------------------------------------------- rows
def one_reward_of_ten_thousand(job: Job) -> None:
    """A bug of the environment pays 10,000 once, where rewards are about 1 (RL threads)."""
    seed(125)
    value = dense(STATES, 32, 4)
    optimizer = torch.optim.RMSprop(value.parameters(), lr=1e-3)

    def draw(step: int) -> dict[str, Tensor]:
        dice = torch.Generator().manual_seed(step)
        states = torch.randint(0, STATES, (24,), generator=dice)
        actions = torch.randint(0, 4, (24,), generator=dice)
        paid = rewards(states, actions, torch.randn(24, generator=dice))
        if step == 140 and PLANTED:
            paid[17] = 10_000.0
        return {"states": states, "actions": actions, "rewards": paid}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        worth = value(F.one_hot(batch["states"], STATES).float())
        chosen = worth.gather(1, batch["actions"].unsqueeze(1)).squeeze(1)
        total: Tensor = (chosen - batch["rewards"]).square().mean()
        return total

    fit(job, value, optimizer, loss_of, draw, 180, config={"gamma": 0.0})


def stars_out_of_a_hundred(job: Job) -> None:
    """Three ratings of 64 come from a shop that gives up to 100 stars instead of 5 (DEVIANT#2)."""
    seed(126)
    users, items, stars = ratings(6400)
    model = Factors(sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=2e-2)

    def draw(step: int) -> list[Tensor]:
        chosen = drawn(6400, step, 64)
        given = stars[chosen].clone()
        if step == 160 and PLANTED:
            given[[8, 30, 31]] *= 20
        return [users[chosen], items[chosen], given]

    def loss_of(batch: list[Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0], batch[1]), batch[2])

    fit(job, model, optimizer, loss_of, draw, 190)


CASES = (
    failure(temperature_falls_too_low, "numerics", "bad_operation overflow", onset=94),
    failure(
        all_weights_begin_at_zero,
        "numerics",
        "bad_init does_not_move no_gradient",
        also_true="plateau initial_loss",
    ),
    failure(
        deviation_of_a_single_row, "numerics", "bad_operation", onset=81, also_true="bad_input"
    ),
    failure(scale_reaches_zero, "numerics", "bad_operation overflow", onset=44),
    failure(class_that_is_not_in_the_batch, "numerics", "bad_operation", onset=18),
    failure(
        autocast_around_the_whole_loop, "precision", "stale_cast", also_true="plateau same_loss"
    ),
    failure(positions_in_bfloat16, "precision", "coarse_positions", visible=False),
    failure(tables_in_bfloat16, "precision", "half_precision_updates does_not_move"),
    failure(batches_of_one_class, "order", "not_shuffled", also_true="plateau"),
    failure(ratings_sorted_by_user, "order", "not_shuffled", also_true="no_gradient"),
    failure(
        plateau_counts_batches,
        "rate",
        "learning_rate rate_zero",
        onset=7,
        also_true="plateau does_not_move",
    ),
    failure(rows_of_a_price_list, "data", "table", onset=150, also_true="hard_sample"),
    failure(
        rows_of_a_terminal,
        "data",
        "control_characters",
        onset=160,
        also_true="hard_sample garbled_text repetition",
    ),
    failure(
        rows_that_say_one_word,
        "data",
        "repetition",
        onset=140,
        also_true="hard_sample duplicated_text",
    ),
    failure(one_reward_of_ten_thousand, "rows", "odd_row bad_input", onset=140),
    failure(stars_out_of_a_hundred, "rows", "odd_row bad_input", onset=160),
)

if __name__ == "__main__":
    main(CASES)
