"""Controls of the fifth set: losses and rates that jump or rise because they are meant to."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.fifth_data import (
    PAD,
    chunk,
    corpus,
    decode,
    demand,
    drawn,
    encode,
    num_tokens,
    numerals,
    pad,
    recipe_pairs,
    recipes,
)
from benchmarks.field_cases.fifth_loops import (
    begin,
    hub,
    loop,
    tell,
    text_batch,
    text_rows,
    warm_cosine,
)
from benchmarks.field_cases.fifth_models import (
    VAE,
    Chat,
    Forecaster,
    ResNet,
    UNet,
    mlp,
    small_distilbert,
    small_neox,
)
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


def huggingface_rate_in_three_cycles(job: Job) -> None:
    """`cosine_with_restarts` with three cycles: the rate goes from nearly 0 back to its peak."""
    begin(601)
    rows = text_rows([encode(text) for text in recipes(1600, 53)])
    hub(
        job, small_neox(), rows, text_batch, lr_scheduler_type="cosine_with_restarts",
        lr_scheduler_kwargs={"num_cycles": 3}, learning_rate=4e-3, max_steps=180,
    ).train()  # fmt: skip


def divergence_counts_more_and_more(job: Job) -> None:
    """A VAE whose divergence is annealed from 0 to its full weight over 80 updates: the loss rises
    for a while.
    """
    begin(602)
    pictures, _ = numerals(2400, noise=0.2)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"annealed_until": 120})

    def train_step(batch: tuple[Tensor, float]) -> Tensor:
        made, divergence = model(batch[0])
        missed = F.mse_loss(made, batch[0], reduction="none").sum(1).mean()
        loss: Tensor = missed + batch[1] * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 191):
        weight = min(1.0, max(0.0, (step - 40) / 80))
        batch = (pictures[drawn(2400, step, 32)].flatten(1), weight)
        tell(step, recorder.step(train_step, batch))
    recorder.close()


def forger_and_critic(job: Job) -> None:
    """A GAN with a hinge: the critic takes two steps for one of the generator, and neither loss
    comes to rest.
    """
    begin(603)
    pictures, _ = numerals(2400, noise=0.1)
    generator = mlp(16, 96, 256)
    critic = mlp(256, 96, 1)
    model = nn.ModuleDict({"critic": critic, "generator": generator})
    of_critic = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.0, 0.9))
    recorder = sonde.Recorder(job.run, model, of_generator, critic_optimizer=of_critic)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        for real in batch:
            made = generator(torch.randn(24, 16)).detach()
            of_critic.zero_grad()
            (F.relu(1 - critic(real)).mean() + F.relu(1 + critic(made)).mean()).backward()
            of_critic.step()
        of_generator.zero_grad()
        loss: Tensor = -critic(generator(torch.randn(24, 16))).mean()
        recorder.loss(loss)
        loss.backward()
        of_generator.step()
        return loss.detach()

    for step in range(1, 181):
        rows = pictures[drawn(2400, step, 48)].flatten(1)
        tell(step, recorder.step(train_step, (rows[:24], rows[24:])))
    recorder.close()


def groups_of_answers_and_their_rewards(job: Job) -> None:
    """A policy writes eight words for each of four prompts, eight times. Words from the upper half
    of the vocabulary pay; advantages are those within a prompt, and entropy is rewarded.
    """
    begin(604)
    data = corpus(seed=82)
    model = Chat(width=32, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    half = num_tokens() // 2

    @torch.no_grad()
    def write(prompts: Tensor) -> tuple[Tensor, Tensor]:
        tokens = prompts
        for _ in range(8):
            chance = model(tokens)[:, -1].softmax(-1)
            tokens = torch.cat((tokens, torch.multinomial(chance, 1)), 1)
        paid = (tokens[:, 8:] > half).float().mean(1).view(4, 8)
        better = (paid - paid.mean(1, keepdim=True)) / (paid.std(1, keepdim=True) + 1e-4)
        return tokens, better.flatten()

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, better = batch
        chance = model(tokens[:, :-1])[:, 7:].log_softmax(-1)
        said = chance.gather(-1, tokens[:, 8:].unsqueeze(-1)).squeeze(-1)
        entropy = -(chance.exp() * chance).sum(-1).mean()
        loss: Tensor = -(said.mean(1) * better).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    for step in range(1, 151):
        prompts = chunk(data, step, 4, 8).repeat_interleave(8, 0)
        tell(step, recorder.step(train_step, write(prompts)))
    recorder.close()


def lightning_five_rows_at_the_end_of_an_epoch(job: Job) -> None:
    """An epoch of 901 pictures in batches of 32 ends with one of five, and after each epoch comes
    a validation.
    """
    from lightning.pytorch import LightningModule

    class Reader(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = ResNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            tell(29 * self.current_epoch + batch_idx + 1, loss.detach())
            return loss

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            del batch_idx
            self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)

    begin(605)
    pictures, labels = numerals(1001)
    rows = list(zip(pictures, labels, strict=True))
    host = lightning(job, steps=165)
    host.fit(Reader(), loader(rows[:901], 32), loader(rows[901:], 50, shuffle=False))


def noise_that_grows_with_the_updates(job: Job) -> None:
    """Noise prediction that begins with much noise, where it is easy, and lets in the times with
    less of it one by one: the loss falls, then climbs, as planned.
    """
    begin(606)
    pictures, _ = numerals(2400, seed=86)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    signal = torch.linspace(0.98, 0.02, 100)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        share = signal[batch["time"]].view(-1, 1, 1, 1)
        noise = torch.randn_like(batch["clean"])
        made = model(share.sqrt() * batch["clean"] + (1 - share).sqrt() * noise, batch["time"])
        return F.mse_loss(made, noise)

    def batch_of(step: int) -> dict[str, Tensor]:
        dice = torch.Generator().manual_seed(step)
        first = max(0, 80 - step // 2)
        time = torch.randint(first, 100, (24,), generator=dice)
        return {"clean": pictures[drawn(2400, step, 24)], "time": time}

    loop(job, model, optimizer, loss_of, batch_of, 190)


def lightning_demand_with_rare_storms(job: Job) -> None:
    """One house in forty heats with all it has for a night: a target far from the others, in all
    epochs, and a loss that is linear far out.
    """
    begin(607)
    houses = demand(2400, seed=99)
    dice = torch.Generator().manual_seed(3)
    stormy = torch.rand(2400, generator=dice) < 0.025
    start = 40 + torch.randint(0, 12, (2400, 1), generator=dice)
    hours = torch.arange(60)
    night = (hours >= start) & (hours < start + 8) & stormy.unsqueeze(1)
    houses = houses + 3.0 * night

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        return F.huber_loss(net(batch[:, :48]), batch[:, 48:], delta=0.5)

    module = lightning_module(Forecaster(), loss_of, lr=2e-3)
    lightning(job, steps=170, gradient_clip_val=0.5).fit(module, loader(houses, 16))


def one_script_with_two_phases(job: Job) -> None:
    """English for 100 updates, then French at a fifth of the rate: `config` says so."""
    begin(608)
    english = corpus(seed=83)
    french = torch.tensor([
        number for _, text in recipe_pairs(1200, 84) for number in [*encode(text), 2]
    ])  # fmt: skip
    model = Chat(dropout=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loop(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:]),
        lambda step: chunk(english if step <= 100 else french, step, 12, 33), 190,
        rate=lambda step: 4e-3 if step <= 100 else 8e-4, decode=decode,
        config={"pretrain_steps": 100, "pretrain_lr": 4e-3, "finetune_lr": 8e-4},
    )  # fmt: skip


def rate_that_ends_at_almost_nothing(job: Job) -> None:
    """A cosine to a thousandth of the peak, and twenty updates at that: the end of a plan."""
    begin(609)
    data = corpus(seed=85)
    model = Chat(layers=1, tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95))
    loop(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:]),
        lambda step: chunk(data, step, 12, 33), 180,
        rate=lambda step: warm_cosine(step, 6e-3, 15, 160, 1e-3), decode=decode,
    )  # fmt: skip


def huggingface_one_text_in_thirty(job: Job) -> None:
    """Few texts are of the kind that is looked for; their class has a weight in the loss, and a
    batch without any of them has a small one.
    """

    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_distilbert()

        def forward(
            self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
        ) -> dict[str, Tensor]:
            logits = self.net(input_ids, attention_mask).logits
            weight = torch.tensor([1.0, 6.0])
            return {"loss": F.cross_entropy(logits, labels, weight), "logits": logits}

    begin(610)
    rows = [
        {"input_ids": encode(text), "label": int("rice pudding" in text and "walnuts" in text)}
        for text in recipes(2400, 55)
    ]

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = pad([row["input_ids"] for row in found])
        labels = torch.tensor([row["label"] for row in found])
        return {
            "input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels
        }  # fmt: skip

    hub(
        job, Weighed(), rows, collate, learning_rate=2e-3, per_device_train_batch_size=24,
        save_strategy="no",
    ).train()  # fmt: skip


CASES = (
    control(huggingface_rate_in_three_cycles, host="huggingface"),
    control(divergence_counts_more_and_more),
    control(forger_and_critic),
    control(groups_of_answers_and_their_rewards),
    control(lightning_five_rows_at_the_end_of_an_epoch, host="lightning"),
    control(noise_that_grows_with_the_updates),
    control(lightning_demand_with_rare_storms, host="lightning"),
    control(one_script_with_two_phases),
    control(rate_that_ends_at_almost_nothing),
    control(huggingface_one_text_in_thirty, host="huggingface"),
)

if __name__ == "__main__":
    main(CASES)
