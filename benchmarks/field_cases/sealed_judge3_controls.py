"""Sealed controls of the third set for the judges: nothing is wrong, and much is uneven."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    ACTIONS,
    KINDS,
    PAD,
    STATES,
    clicks,
    corpus,
    cut,
    dates,
    drawn,
    glyphs,
    graphs,
    loads,
    read_letters,
    rewards,
)
from benchmarks.field_cases.third_loops import fit, seed, tell, trainer
from benchmarks.field_cases.third_models import (
    DateReader,
    GlyphNet,
    GlyphVAE,
    GraphNet,
    PatchNet,
    dense,
)
from torch import Tensor, nn

import sonde


def rewards_without_a_baseline(job: Job) -> None:
    """REINFORCE as in the first textbook: no baseline, loud noise, eight episodes a batch."""
    seed(231)
    policy = dense(STATES, 24, ACTIONS, act=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    recorder = sonde.Recorder(job.run, policy, optimizer)

    def train_step(states: Tensor) -> Tensor:
        chance = torch.distributions.Categorical(logits=policy(F.one_hot(states, STATES).float()))
        actions = chance.sample()
        paid = rewards(states, actions, 4 * torch.randn(len(states)))
        loss: Tensor = -(chance.log_prob(actions) * paid).mean() - 0.05 * chance.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 301):
        dice = torch.Generator().manual_seed(step)
        tell(step, recorder.step(train_step, torch.randint(0, STATES, (8,), generator=dice)))
    recorder.close()


def line_that_is_fitted_exactly(job: Job) -> None:
    """Targets without noise: the loss goes to 1e-10 and leaps about down there."""
    seed(232)
    true = torch.randn(10, 1)
    model = nn.Linear(10, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        columns, _ = clicks(step)
        return columns, columns @ true + 0.5

    fit(job, model, optimizer, lambda batch: F.mse_loss(model(batch[0]), batch[1]), draw, 400)


def translation_clipped_tightly(job: Job) -> None:
    """A high rate, gradients clipped to 0.1 each step, and a loop that only makes a recorder."""
    seed(233)
    model = DateReader(width=56)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3, betas=(0.9, 0.98))
    recorder = sonde.Recorder(job.run, model, optimizer, decode=read_letters)
    for step in range(1, 201):
        source, target = dates(step)
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        recorder.loss(loss)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        tell(step, loss)


def patches_of_other_pictures(job: Job) -> None:
    """CutMix: in half of the batches a corner of each picture is another's, and so is a part of its
    label.
    """
    seed(234)
    pictures, labels = glyphs(1200)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        shown = batch[0].clone()
        share = 0.0
        if torch.rand(()) < 0.5:
            size = int(torch.randint(4, 11, ()))
            shown[:, :, :size, :size] = batch[0].roll(1, 0)[:, :, :size, :size]
            share = size * size / 256
        scores = model(shown)
        mine = F.cross_entropy(scores, batch[1], label_smoothing=0.1)
        return (1 - share) * mine + share * F.cross_entropy(scores, batch[1].roll(1))

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(1200, step, 24)
        return pictures[chosen], labels[chosen]

    fit(job, model, optimizer, loss_of, draw, 220)


def huggingface_evaluates_often(job: Job) -> None:
    """The Trainer evaluates every 25 updates and smooths labels; a small GPT-2 with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer

    seed(235)
    texts = corpus()
    rows = [{"row": cut(texts.stream, number, 1, 33)[0]} for number in range(1, 1001)]

    def collate(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([row["row"] for row in found])
        return {"input_ids": tokens, "labels": tokens}

    settings = GPT2Config(
        vocab_size=len(texts.pieces), n_positions=40, n_embd=40, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2, resid_pdrop=0.2, embd_pdrop=0.2,
    )  # fmt: skip
    host: Any = trainer(
        job, Trainer, GPT2LMHeadModel(settings), rows[:900], collate, max_steps=130,
        eval_strategy="steps", eval_steps=25, label_smoothing_factor=0.1,
        lr_scheduler_type="polynomial", eval_dataset=rows[900:950],
    )  # fmt: skip
    host.train()


def targets_with_wild_tails(job: Job) -> None:
    """The noise of the targets has Cauchy's distribution; the loss is the mean of the absolute
    errors, as it should be then.
    """
    seed(236)
    model = dense(10, 48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def draw(step: int) -> dict[str, Tensor]:
        columns, _ = clicks(step)
        spread = torch.rand(32, generator=torch.Generator().manual_seed(step)) - 0.5
        noise = 0.1 * torch.tan(3.1 * spread)
        return {"x": columns, "y": columns[:, 0] - columns[:, 3].abs() + noise}

    fit(
        job, model, optimizer,
        lambda batch: F.l1_loss(model(batch["x"]).squeeze(1), batch["y"]), draw, 300,
    )  # fmt: skip


def target_is_an_average(job: Job) -> None:
    """BYOL in small: two views, a predictor, and a target network that is the average of the other
    and gets no gradient.
    """
    seed(237)
    series = loads(1500)
    online = dense(36, 64, 16)
    predictor = dense(16, 32, 16)
    target = copy.deepcopy(online).requires_grad_(False)
    model = nn.ModuleDict({"online": online, "predictor": predictor})
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, target=target)

    def train_step(rows: Tensor) -> Tensor:
        views = [rows + 0.2 * torch.randn_like(rows) for _ in range(2)]
        loss = torch.zeros(())
        for mine, other in (views, views[::-1]):
            guess = F.normalize(predictor(online(mine)), dim=1)
            aim = F.normalize(target(other), dim=1)
            loss = loss + 2 - 2 * (guess * aim).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return loss.detach()

    for step in range(1, 251):
        tell(step, recorder.step(train_step, series[drawn(1500, step, 32)]))
    recorder.close()


def most_units_are_dropped(job: Job) -> None:
    """Dropout of 0.7 before the head and batches of twelve: a loss that hardly sits still."""
    seed(238)
    pictures, labels = glyphs(960)
    net = GlyphNet(64)
    model = nn.Sequential(net, nn.Dropout(0.7), nn.Linear(64, KINDS))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 12)
        return pictures[chosen], labels[chosen]

    fit(job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]), draw, 260)


def graphs_that_grow(job: Job) -> None:
    """A curriculum: graphs of 5 nodes, from 80 on of 10, from 160 on of 16."""
    seed(239)
    model = GraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def draw(step: int) -> tuple[Tensor, ...]:
        size = (5, 10, 16)[(step >= 80) + (step >= 160)]
        return tuple(graphs(step, 24, size))

    def loss_of(batch: tuple[Tensor, ...]) -> Tensor:
        return F.smooth_l1_loss(model(batch[0], batch[1]), batch[2])

    fit(job, model, optimizer, loss_of, draw, 240)


def divergence_comes_and_goes(job: Job) -> None:
    """A VAE whose second term goes from 0 to its weight and back thrice, as a recipe has it."""
    seed(240)
    pictures, _ = glyphs(960, noise=0.1)
    model = GlyphVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"cycles": 3, "beta": 0.5})

    def train_step(batch: tuple[Tensor, float]) -> Tensor:
        shown, weight = batch
        made, mean, log_variance = model(shown)
        apart = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        loss = F.mse_loss(made, shown, reduction="sum") / len(shown) + weight * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total: Tensor = loss
        return total

    for step in range(1, 241):
        weight = 0.5 * min(1.0, (step % 80) / 40)
        tell(step, recorder.step(train_step, (pictures[drawn(960, step, 32)], weight)))
    recorder.close()


CASES = (
    control(rewards_without_a_baseline),
    control(line_that_is_fitted_exactly),
    control(translation_clipped_tightly),
    control(patches_of_other_pictures),
    control(huggingface_evaluates_often, host="huggingface"),
    control(targets_with_wild_tails),
    control(target_is_an_average),
    control(most_units_are_dropped),
    control(graphs_that_grow),
    control(divergence_comes_and_goes),
)

if __name__ == "__main__":
    main(CASES)
