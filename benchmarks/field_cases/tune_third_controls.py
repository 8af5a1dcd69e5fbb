"""Trainings with which nothing is wrong, to tune on, of the third set: the scripts."""

import copy
import random

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.loops import declare
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    ACTIONS,
    PAD,
    STATES,
    Pieces,
    clicks,
    corpus,
    cut,
    dates,
    drawn,
    glyphs,
    loads,
    padded,
    ratings,
    read_letters,
    recipes,
    rewards,
)
from benchmarks.field_cases.third_loops import fit, seed, tell
from benchmarks.field_cases.third_models import (
    DateReader,
    Decoder,
    Factors,
    Forecaster,
    GlyphNet,
    PatchNet,
    dense,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import LinearLR

import sonde


def weights_are_shaken_before_each_step(job: Job) -> None:
    """Sharpness-aware minimisation: two passes a step, the second with weights moved uphill."""
    seed(151)
    pictures, labels = glyphs(960)
    model = GlyphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"rho": 0.05})

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = recorder.loss(F.cross_entropy(model(batch[0]), batch[1]))
        loss.backward()
        found = [p for p in model.parameters() if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in found if p.grad is not None]).norm()
        moves = [0.05 * p.grad / (norm + 1e-12) for p in found if p.grad is not None]
        with torch.no_grad():
            for parameter, move in zip(found, moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        with torch.no_grad():
            for parameter, move in zip(found, moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in range(1, 181):
        chosen = drawn(960, step, 32)
        tell(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
    recorder.close()


def windows_that_overlap(job: Job) -> None:
    """Windows of one long series, an hour apart: two rows of a batch are often nearly the same."""
    seed(152)
    long = loads(1, 900)[0]
    windows = long.unfold(0, 36, 1)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.mse_loss(model(rows[:, :-1]).squeeze(2), rows[:, 1:])

    fit(job, model, optimizer, loss_of, lambda step: windows[drawn(len(windows), step, 32)], 250)


def actor_and_critic(job: Job) -> None:
    """A policy and a value with one trunk, an entropy bonus, and advantages that change sign."""
    seed(153)
    trunk = dense(STATES, 48, 48, act=nn.Tanh)
    model = nn.ModuleDict(
        {"trunk": trunk, "policy": nn.Linear(48, ACTIONS), "value": nn.Linear(48, 1)}
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(states: Tensor) -> Tensor:
        read = torch.tanh(trunk(F.one_hot(states, STATES).float()))
        chance = F.log_softmax(model["policy"](read), 1)
        worth = model["value"](read).squeeze(1)
        actions = torch.multinomial(chance.detach().exp(), 1)
        paid = rewards(states, actions.squeeze(1), torch.randn(len(states)))
        advantage = paid - worth.detach()
        gain = (chance.gather(1, actions).squeeze(1) * advantage).mean()
        spread = -(chance.exp() * chance).sum(1).mean()
        loss = -gain + 0.5 * F.mse_loss(worth, paid) - 0.02 * spread
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        now: Tensor = loss.detach()
        return now

    for step in range(1, 301):
        dice = torch.Generator().manual_seed(step)
        tell(step, recorder.step(train_step, torch.randint(0, STATES, (32,), generator=dice)))
    recorder.close()


def three_quantiles(job: Job) -> None:
    """A forecast of three quantiles by the pinball loss; the rate falls linearly."""
    seed(154)
    series = loads(1200)
    model = Forecaster(outputs=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scheduler = LinearLR(optimizer, 1.0, 0.05, total_iters=220)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss_of(rows: Tensor) -> Tensor:
        error = rows[:, 1:].unsqueeze(2) - model(rows[:, :-1])
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    draw = lambda step: series[drawn(1200, step, 24)]  # noqa: E731
    fit(job, model, optimizer, loss_of, draw, 220, scheduler=scheduler)


def learns_from_a_teacher(job: Job) -> None:
    """A small network learns the softened answers of a larger one that stays as it is."""
    seed(155)
    pictures, labels = glyphs(960)
    teacher = PatchNet(width=48)
    first = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
    for step in range(1, 121):
        chosen = drawn(960, step, 32)
        F.cross_entropy(teacher(pictures[chosen]), labels[chosen]).backward()
        first.step()
        first.zero_grad()
    teacher.eval().requires_grad_(False)
    student = PatchNet(width=24, layers=1, dropout=0.1)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)

    def loss_of(shown: Tensor) -> Tensor:
        soft = F.softmax(teacher(shown) / 2, 1)
        return F.kl_div(F.log_softmax(student(shown) / 2, 1), soft, reduction="batchmean") * 4

    fit(job, student, optimizer, loss_of, lambda step: pictures[drawn(960, step, 32)], 180)


def scaler_and_micro_batches(job: Job) -> None:
    """Autocast to float16 with a scaler and two micro-batches; its first scale is too high by far,
    so that four updates are skipped.
    """
    seed(156)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=32, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=60)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode, scaler=scaler)

    def train_step(rows: Tensor, last: bool) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        scaler.scale(loss / 2).backward()
        if last:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss.detach()

    for number in range(1, 221):
        rows = cut(texts.stream, number, 4, 25)
        loss = recorder.step(train_step, rows, last=number % 2 == 0)
        if number % 2 == 0:
            tell(number // 2, loss)
    recorder.close()


def thirty_pictures_by_heart(job: Job) -> None:
    """A check that the model can learn: thirty pictures, over and over, until the loss is 0."""
    seed(157)
    pictures, labels = glyphs(30, noise=0.8)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    fit(
        job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
        lambda _: (pictures, labels), 200,
    )  # fmt: skip


def from_adam_to_sgd(job: Job) -> None:
    """Adam for 120 updates, then SGD with momentum, as planned and told."""
    seed(158)
    model = dense(10, 64, 64, 1)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 241):
        if step == 121:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
            declare(recorder, "moments")
            declare(recorder, "rate")
        tell(step, recorder.step(train_step, clicks(step)))
    recorder.close()


def weights_decay_strongly(job: Job) -> None:
    """AdamW with a decay of 2: the weights shrink while the loss falls."""
    seed(159)
    pictures, labels = glyphs(960)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=2.0)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 32)
        return pictures[chosen], labels[chosen]

    fit(
        job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]), draw, 200,
        config={"weight_decay": 2.0},
    )  # fmt: skip


def buckets_of_one_length(job: Job) -> None:
    """Rows are put into batches of like length, and the batches are shuffled."""
    seed(160)
    texts = recipes(1400)
    pieces = Pieces(texts)
    rows = sorted((pieces.encode(text) for text in texts), key=len)
    batches = [padded(rows[start : start + 14]) for start in range(0, 1400, 14)]
    model = Decoder(len(pieces), layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dice = random.Random(8)
    order = [*dice.sample(range(100), 100), *dice.sample(range(100), 100)]

    def loss_of(tokens: Tensor) -> Tensor:
        labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == PAD, -100)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())

    draw = lambda step: batches[order[step - 1]]  # noqa: E731
    fit(job, model, optimizer, loss_of, draw, 170, decode=pieces.decode)


def own_guesses_are_fed_back(job: Job) -> None:
    """Scheduled sampling: from step 100 on the decoder is fed more and more of its own letters, and
    the loss rises, as planned.
    """
    seed(161)
    model = DateReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(batch: tuple[Tensor, Tensor, float]) -> Tensor:
        source, target, share = batch
        shown = target[:, :-1]
        if share > 0:
            guess = model(source, shown).argmax(-1)
            own = torch.rand(guess[:, 1:].shape) < share
            shown = torch.cat((shown[:, :1], torch.where(own, guess[:, :-1], shown[:, 1:])), 1)
        logits = model(source, shown)
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)

    def draw(step: int) -> tuple[Tensor, Tensor, float]:
        return (*dates(step), min(0.4, max(0.0, (step - 100) / 250)))

    fit(job, model, optimizer, loss_of, draw, 220, decode=read_letters)


class Codes(nn.Module):
    """A code book that follows the averages of what is near each code; no gradient moves it."""

    def __init__(self, num: int = 16, width: int = 8) -> None:
        super().__init__()
        self.codes: Tensor
        self.sums: Tensor
        self.counts: Tensor
        self.register_buffer("codes", torch.randn(num, width))
        self.register_buffer("sums", self.codes.clone())
        self.register_buffer("counts", torch.ones(num))

    def forward(self, found: Tensor) -> tuple[Tensor, Tensor]:
        nearest = torch.cdist(found, self.codes).argmin(1)
        chosen = self.codes[nearest]
        if self.training:
            hot = F.one_hot(nearest, len(self.codes)).float()
            with torch.no_grad():
                self.counts.lerp_(hot.sum(0), 0.05)
                self.sums.lerp_(hot.t() @ found, 0.05)
                self.codes.copy_(self.sums / (self.counts.unsqueeze(1) + 1e-3))
        return found + (chosen - found).detach(), F.mse_loss(found, chosen.detach())


def codes_follow_averages(job: Job) -> None:
    """A quantised autoencoder whose code book is moved by averages and not by gradients."""
    seed(162)
    series = loads(1500)
    model = nn.ModuleDict(
        {"encoder": dense(36, 64, 8), "codes": Codes(), "decoder": dense(8, 64, 36)}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(rows: Tensor) -> Tensor:
        code, apart = model["codes"](model["encoder"](rows))
        total: Tensor = F.mse_loss(model["decoder"](code), rows) + 0.25 * apart
        return total

    fit(job, model, optimizer, loss_of, lambda step: series[drawn(1500, step, 32)], 250)


def tables_with_sparse_gradients(job: Job) -> None:
    """SparseAdam for large tables: most rows get no gradient in a step. An average of the weights
    is kept aside, and evaluated every 50 steps.
    """
    seed(163)
    users, items, stars = ratings()
    model = Factors(sparse=True)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-2)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(chosen: Tensor) -> Tensor:
        loss = F.mse_loss(model(users[chosen], items[chosen]), stars[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 251):
        tell(step, recorder.step(train_step, drawn(4000, step, 48)))
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
            if step % 50 == 0:
                print(f"rmse {float(F.mse_loss(average(users, items), stars)) ** 0.5:.3f}")
    recorder.close()


CASES = (
    control(weights_are_shaken_before_each_step),
    control(windows_that_overlap),
    control(actor_and_critic),
    control(three_quantiles),
    control(learns_from_a_teacher),
    control(scaler_and_micro_batches),
    control(thirty_pictures_by_heart),
    control(from_adam_to_sgd),
    control(weights_decay_strongly),
    control(buckets_of_one_length),
    control(own_guesses_are_fed_back),
    control(codes_follow_averages),
    control(tables_with_sparse_gradients),
)

if __name__ == "__main__":
    main(CASES)
