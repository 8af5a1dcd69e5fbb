"""Sealed controls of the third set for the check: odd targets, rates and batches, as planned."""

import copy
import random

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.loops import declare
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    KINDS,
    PAD,
    Pieces,
    clicks,
    date_pair,
    drawn,
    glyphs,
    loads,
    padded,
    points,
    recipes,
)
from benchmarks.field_cases.third_loops import fit, seed, tell
from benchmarks.field_cases.third_models import (
    Decoder,
    Forecaster,
    GlyphNet,
    PatchNet,
    PointDenoiser,
    dense,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import CyclicLR, MultiStepLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import sonde


def two_corpora_in_turn(job: Job) -> None:
    """Recipes in odd steps, dates in even ones: the loss goes back and forth between two levels."""
    seed(441)
    dice = random.Random(3)
    lines = [" is ".join(date_pair(dice)) + "." for _ in range(900)]
    texts = recipes(900)
    pieces = Pieces([*texts[:150], *lines[:150]])
    corpora = [[pieces.encode(line) for line in found] for found in (lines, texts)]
    model = Decoder(len(pieces), layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def draw(step: int) -> Tensor:
        rows = corpora[step % 2]
        return padded([rows[number] for number in drawn(900, (step + 1) // 2, 12).tolist()])

    def loss_of(tokens: Tensor) -> Tensor:
        labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == PAD, -100)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())

    fit(job, model, optimizer, loss_of, draw, 180, decode=pieces.decode)


def likelihood_above_one(job: Job) -> None:
    """A forecast with a learned variance: its negative log-likelihood goes far below zero."""
    seed(442)
    series = loads(2000)
    model = Forecaster(outputs=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        mean, raw = model(rows[:, :-1]).unbind(-1)
        variance = F.softplus(raw) + 1e-4
        return F.gaussian_nll_loss(mean, rows[:, 1:], variance)

    fit(job, model, optimizer, loss_of, lambda step: series[drawn(2000, step, 32)], 250)


def rare_class_is_drawn_often(job: Job) -> None:
    """One class is rare, and a weighted sampler draws its pictures often: thirty pictures come
    again and again, as planned.
    """
    seed(443)
    pictures, labels = glyphs(1400)
    keep = (labels != 2) | (torch.rand(1400) < 0.13)
    pictures = pictures[keep]
    labels = labels[keep]
    share = torch.bincount(labels, minlength=KINDS)
    weights = 1.0 / share[labels]
    dice = torch.Generator().manual_seed(12)
    sampler = WeightedRandomSampler(weights.tolist(), 24 * 200, generator=dice)
    loader = DataLoader(TensorDataset(pictures, labels), 24, sampler=sampler)
    model = PatchNet(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: list[Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step, batch in enumerate(loader, 1):
        tell(step, recorder.step(train_step, batch))
    recorder.close()


def rate_goes_up_and_down(job: Job) -> None:
    """`CyclicLR` in triangles of 60 steps, each half as high as the one before."""
    seed(444)
    pictures, labels = glyphs(960)
    model = GlyphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    scheduler = CyclicLR(
        optimizer, 0.001, 0.04, step_size_up=30, mode="triangular2", cycle_momentum=False
    )

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 24)
        return pictures[chosen], labels[chosen]

    fit(
        job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]), draw, 240,
        scheduler=scheduler,
    )  # fmt: skip


def negatives_get_harder(job: Job) -> None:
    """Triplets: negatives are drawn at random, and from update 110 on the nearest of the batch are
    taken, as planned: the loss rises.
    """
    seed(445)
    pictures, labels = glyphs(1200)
    model = GlyphNet(16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(batch: tuple[Tensor, Tensor, bool]) -> Tensor:
        shown, kinds, hard = batch
        found = F.normalize(model(shown), dim=1)
        far = torch.cdist(found, found)
        same = kinds.unsqueeze(0) == kinds.unsqueeze(1)
        near = torch.where(same, 0.0, 1.0)
        positive = (far * (1 - near)).sum(1) / (1 - near).sum(1)
        negative = (far * near).sum(1) / near.sum(1).clamp(min=1)
        if hard:
            negative = torch.where(same, 9.0, far).amin(1)
        return F.relu(positive - negative + 0.5).mean()

    def draw(step: int) -> tuple[Tensor, Tensor, bool]:
        chosen = drawn(1200, step, 32)
        return pictures[chosen], labels[chosen], step >= 110

    fit(job, model, optimizer, loss_of, draw, 200, config={"hard_from": 110})


def tasks_weigh_themselves(job: Job) -> None:
    """Two tasks with learned weights in the loss, which falls below zero for good."""
    seed(446)
    trunk = dense(10, 48, 48)
    model = nn.ModuleDict({"trunk": trunk, "one": nn.Linear(48, 1), "two": nn.Linear(48, 1)})
    weights = nn.Parameter(torch.zeros(2))
    model.register_parameter("weights", weights)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        columns, clicked = batch
        found = F.relu(trunk(columns))
        first = F.mse_loss(model["one"](found).squeeze(1), 0.2 * columns[:, 0] * columns[:, 7])
        second = F.binary_cross_entropy_with_logits(model["two"](found).squeeze(1), clicked)
        losses = torch.stack((first, second))
        return (torch.exp(-weights) * losses + 0.5 * weights).sum()

    fit(job, model, optimizer, loss_of, clicks, 280)


def pictures_that_grow(job: Job) -> None:
    """Progressive sizes: pictures of 8 pixels, from 70 on of 12, from 140 on of 16."""
    seed(447)
    pictures, labels = glyphs(1200)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, KINDS),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(1200, step, 24)
        side = (8, 12, 16)[(step >= 70) + (step >= 140)]
        shown = F.interpolate(pictures[chosen], (side, side), mode="bilinear", antialias=True)
        return shown, labels[chosen]

    fit(job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]), draw, 210)


def denoiser_with_an_average(job: Job) -> None:
    """Diffusion of points: a noise of another strength in each row, weights by that strength, and
    an average of the weights that is tried every 50 steps.
    """
    seed(448)
    model = PointDenoiser()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, average=average)

    def loss_with(net: nn.Module, clean: Tensor) -> Tensor:
        time = torch.rand(len(clean))
        noise = torch.randn_like(clean)
        keep = torch.cos(1.55 * time).unsqueeze(1)
        noisy = keep * clean + torch.sin(1.55 * time).unsqueeze(1) * noise
        per_row = (net(noisy, time) - noise).square().mean(1)
        weights = (keep.squeeze(1) ** -2).clamp(max=5.0)
        total: Tensor = (weights * per_row).mean()
        return total

    def train_step(clean: Tensor) -> Tensor:
        loss = loss_with(model, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.03)
        return loss.detach()

    for step in range(1, 251):
        tell(step, recorder.step(train_step, points(step, 48)))
        if step % 50 == 0:
            with torch.no_grad():
                print(f"average: {float(loss_with(average, points(9_000, 256))):.3f}")
    recorder.close()


def rate_falls_to_a_tenth(job: Job) -> None:
    """`MultiStepLR` lowers the rate to a tenth at 120, and the recorder was told so."""
    seed(449)
    pictures, labels = glyphs(960, noise=0.6)
    model = GlyphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-3)
    scheduler = MultiStepLR(optimizer, [120], 0.1)
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=scheduler)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    for step in range(1, 211):
        if step == 120:
            declare(recorder, "rate")
        chosen = drawn(960, step, 16)
        tell(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
    recorder.close()


CASES = (
    control(two_corpora_in_turn),
    control(likelihood_above_one),
    control(rare_class_is_drawn_often),
    control(rate_goes_up_and_down),
    control(negatives_get_harder),
    control(tasks_weigh_themselves),
    control(pictures_that_grow),
    control(denoiser_with_an_average),
    control(rate_falls_to_a_tenth),
)

if __name__ == "__main__":
    main(CASES)
