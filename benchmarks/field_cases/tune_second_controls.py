"""Trainings with which nothing is wrong, to tune on, of the second set."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import (
    huggingface,
    lightning,
    lightning_module,
    loader,
    resume_huggingface,
)
from benchmarks.field_cases.loops import SAVED
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    stripes,
    tagged,
    to_bytes,
    waves,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say, watched
from benchmarks.field_cases.second_models import (
    Denoiser,
    LowRank,
    NanoLM,
    StripeNet,
    TwoTowers,
    WordEncoder,
    WordLSTM,
    mlp,
)
from benchmarks.field_cases.texts import sentences
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import sonde


def two_players(job: Job) -> None:
    """A generator and a critic, each with an optimizer of its own, in one step function."""
    begin(41)
    maker = mlp(6, 32, 2)
    critic = mlp(2, 32, 1)
    both = nn.ModuleDict({"maker": maker, "critic": critic})
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    recorder = sonde.Recorder(job.run, both, of_maker, critic_optimizer=of_critic)

    def train_step(real: Tensor) -> Tensor:
        made = maker(torch.randn(len(real), 6))
        doubt = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        of_critic.zero_grad()
        doubt.backward()
        of_critic.step()
        loss = recorder.loss(F.softplus(-critic(made)).mean())
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
        return loss.detach()

    for step in range(250):
        angle = 6.28 * torch.rand(32, 1, generator=torch.Generator().manual_seed(step))
        say(step + 1, recorder.step(train_step, torch.cat((angle.cos(), angle.sin()), 1)))
    recorder.close()


def denoising_at_random_times(job: Job) -> None:
    """Each row has a noise of its own strength, so the losses of rows differ by a hundred times."""
    begin(42)
    series = waves(2000)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: Tensor) -> Tensor:
        time = torch.rand(len(batch))
        noise = torch.randn_like(batch)
        keep = (1 - time).sqrt().unsqueeze(1)
        noisy = keep * batch + time.sqrt().unsqueeze(1) * noise
        return F.mse_loss(model(noisy, time), noise)

    watched(
        job,
        model,
        optimizer,
        (series[epoch_order(2000, step, 16)] for step in range(300)),
        loss_of,
        config={"lr": 2e-3},
    )


def prices_with_heavy_tails(job: Job) -> None:
    """One price in thirty is far off, by nature, and Huber's loss is there for it."""
    begin(43)
    model = mlp(12, 48, 1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(300):
            columns, price = houses(step, 24)
            generator = torch.Generator().manual_seed(step)
            rare = torch.rand(24, generator=generator) < 1 / 30
            yield columns, torch.where(rare, price * 12.0, price)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.huber_loss(model(batch[0]).squeeze(1), batch[1], delta=1.0)

    over(job, model, optimizer, batches(), loss_of)


def labels_are_noisy_throughout(job: Job) -> None:
    """An eighth of all labels is wrong, in every batch: it is that kind of data."""
    begin(44)
    pictures, labels = stripes(1600, noise=0.8)
    dice = torch.Generator().manual_seed(4)
    wrong = torch.rand(1600, generator=dice) < 0.125
    labels = torch.where(wrong, torch.randint(0, 5, (1600,), generator=dice), labels)
    model = StripeNet(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(250):
            chosen = epoch_order(1600, step, 32)
            yield pictures[chosen], labels[chosen]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
    )


def resume_huggingface_along_a_cosine(job: Job) -> None:
    """The Trainer restores everything, in the middle of a cosine."""
    trainer = huggingface(
        job,
        lr_scheduler_type="cosine",
        max_steps=200,
        weight_decay=0.1,
        seed=9,
        learning_rate=3e-3,
    )
    resume_huggingface(job, trainer)


def resume_lightning_with_a_schedule(job: Job) -> None:
    """`fit` with `ckpt_path`; the rate falls by steps."""
    begin(45)
    stream = byte_stream(1500)
    rows = torch.cat([window(stream, step, size=16, block=40) for step in range(60)])

    def optimizers(model: nn.Module) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
        scheduler = {"scheduler": StepLR(optimizer, 40, 0.5), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch[:, :-1], batch[:, 1:])[1]
        return loss

    module = lightning_module(NanoLM(dropout=0.1), loss_of, optimizers=optimizers)
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / f"step={SAVED}.ckpt")
    lightning(job, steps=180, decode=from_bytes).fit(module, loader(rows, 12), ckpt_path=path)


def averaged_weights_are_evaluated(job: Job) -> None:
    """Every 50 steps an average of the weights is put in, evaluated, and taken out again."""
    begin(46)
    pictures, labels = stripes(noise=1.5)
    model = StripeNet()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = recorder.loss(F.cross_entropy(model(batch[0]), batch[1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in range(1, 251):
        chosen = epoch_order(len(labels), step, 24)
        say(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.02)
        if step % 50 == 0:
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(average.state_dict())
            model.eval()
            with torch.no_grad():
                right = (model(pictures[:200]).argmax(1) == labels[:200]).float().mean()
            print(f"average: {float(right):.3f} right")
            model.load_state_dict(kept)
            model.train()
    recorder.close()


def one_cycle_of_rate_and_momentum(job: Job) -> None:
    """The rate rises to 25 times its beginning and falls, the momentum the other way round."""
    begin(47)
    pictures, labels = stripes(noise=1.2)
    model = StripeNet(width=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=300)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(300):
            chosen = epoch_order(len(labels), step, 40)
            shown = pictures[chosen]
            yield shown.flip(3) if step % 2 else shown, labels[chosen]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
        scheduler=scheduler,
        config={"max_lr": 0.2, "epochs": 12},
    )


def accumulation_over_all_tokens(job: Job) -> None:
    """Sums of four micro-batches of unlike length, each divided by the tokens of all four."""
    begin(48)
    rows = word_rows(length=16)
    model = WordLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with sonde.Recorder(job.run, model, optimizer, decode=from_words) as recorder:

        def train_step(micro_batches: list[Tensor]) -> float:
            num_tokens = sum(int((rows[:, 1:] != PADDING).sum()) for rows in micro_batches)
            total = 0.0
            for found in micro_batches:
                logits, _ = model(found[:, :-1])
                loss = F.cross_entropy(
                    logits.flatten(0, 1),
                    found[:, 1:].flatten(),
                    ignore_index=PADDING,
                    reduction="sum",
                )
                (loss / num_tokens).backward()
                total += loss.item() / num_tokens
            recorder.loss(torch.tensor(total))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return total

        for step in range(160):
            found = rows[epoch_order(len(rows), step, 20)]
            say(step + 1, recorder.step(train_step, list(found.split([8, 6, 4, 2]))))


class Tagged(NamedTuple):
    """A batch of words with their tags."""

    words: Tensor
    tags: Tensor


def parts_of_speech(job: Job) -> None:
    """Every word gets a tag; padding has a tag that does not count."""
    begin(49)
    words, tags = tagged()
    model = WordEncoder(outputs=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    criterion = nn.CrossEntropyLoss(ignore_index=0)

    def loss_of(batch: Tagged) -> Tensor:
        scores = model(batch.words, batch.words == PADDING)
        loss: Tensor = criterion(scores.transpose(1, 2), batch.tags)
        return loss

    def batches() -> Iterator[Tagged]:
        for step in range(150):
            chosen = epoch_order(len(words), step, 16)
            yield Tagged(words[chosen], tags[chosen])

    over(job, model, optimizer, batches(), loss_of, clip=1.0)


def two_views_of_a_thing(job: Job) -> None:
    """A contrastive loss: every row is compared with all others of the batch, by design."""
    begin(50)
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["left"], batch["right"])
        own = torch.arange(len(scores))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(250):
            columns, _ = houses(step, 48)
            noise = torch.randn(48, 12, generator=torch.Generator().manual_seed(step))
            yield {"left": columns, "right": columns.roll(3, 1) + 0.5 * noise}

    over(job, model, optimizer, batches(), loss_of)


def adapters_beside_frozen_weights(job: Job) -> None:
    """A model that was trained before gets small matrices that begin at zero, and other text."""
    begin(51)
    stream = byte_stream(1500)
    model = NanoLM()
    before = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(120):
        rows = window(stream, step, size=12, block=40)
        model(rows[:, :-1], rows[:, 1:])[1].backward()
        before.step()
        before.zero_grad()
    model.requires_grad_(False)
    layer: Any
    for layer in model.h:
        layer.attn.c_attn = LowRank(layer.attn.c_attn)
        layer.c_fc = LowRank(layer.c_fc)
    learnt = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=4e-3)
    other = torch.tensor(to_bytes(" ".join(sentences(1500))))
    nano(
        job,
        model,
        optimizer,
        lambda step: window(other, step, size=12, block=40),
        200,
        decode=from_bytes,
    )


CASES = (
    control(two_players),
    control(denoising_at_random_times),
    control(prices_with_heavy_tails),
    control(labels_are_noisy_throughout),
    control(resume_huggingface_along_a_cosine, host="huggingface"),
    control(resume_lightning_with_a_schedule, host="lightning"),
    control(averaged_weights_are_evaluated),
    control(one_cycle_of_rate_and_momentum),
    control(accumulation_over_all_tokens),
    control(parts_of_speech),
    control(two_views_of_a_thing),
    control(adapters_beside_frozen_weights),
)

if __name__ == "__main__":
    main(CASES)
