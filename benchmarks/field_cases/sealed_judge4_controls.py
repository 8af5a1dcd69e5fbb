"""Trainings of the fourth set with which nothing is wrong, beside texts, rows and rates."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.fourth_data import (
    COLUMNS,
    PLACES,
    SHAPES,
    Corridors,
    decode,
    encode,
    entries,
    filled,
    flats,
    scenes,
    shuffled,
    stream,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
    causal_batch,
    causal_rows,
    log,
    nano,
    set_seed,
    simple,
    trainer_of,
)
from benchmarks.field_cases.fourth_models import GPT, SceneNet, mlp, small_gpt2, small_llama
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


def gradients_of_a_noisy_policy(job: Job) -> None:
    """REINFORCE with sixteen walks an update and no baseline: the loss jumps up and down from the
    first update to the last.
    """
    set_seed(431)
    policy = mlp(PLACES, 32, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    recorder = sonde.Recorder(job.run, policy, optimizer)
    walks = Corridors(16, 15)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        chance = policy(F.one_hot(batch["at"], PLACES).float()).log_softmax(1)
        taken = chance.gather(1, batch["move"].unsqueeze(1)).squeeze(1)
        entropy = -(chance.exp() * chance).sum(1).mean()
        loss: Tensor = -(taken * batch["paid"]).mean() - 0.1 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 251):
        with torch.no_grad():
            chance = policy(F.one_hot(walks.at, PLACES).float()).softmax(1)
        move = torch.multinomial(chance, 1, generator=walks.generator).squeeze(1)
        at, paid, after, _ = walks.step(move)
        batch = {"at": at, "move": move, "paid": 5 * paid + 0.3 * (after - at)}
        batch["paid"] += torch.randn(16, generator=walks.generator)
        log(step, recorder.step(train_step, batch))
    recorder.close()


def focal_loss_for_a_rare_kind(job: Job) -> None:
    """One kind in fifty; a focal loss, whose scale is far below that of a cross-entropy."""
    set_seed(432)
    found = scenes(3200)
    keep = (found.labels != 2) | (torch.arange(3200) % 16 == 0)
    pictures = found.pictures[keep]
    labels = found.labels[keep]
    model = SceneNet(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def criterion(batch: tuple[Tensor, Tensor]) -> Tensor:
        each = F.cross_entropy(model(batch[0])[0], batch[1], reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = shuffled(len(labels), step, 24)
        return pictures[chosen], labels[chosen]

    simple(job, model, optimizer, criterion, draw, 200)


def rate_falls_only_at_the_end(job: Job) -> None:
    """Warm-up, a long level stretch, a fall to zero in the last fifth: the loss falls with it."""
    set_seed(433)
    data = stream()
    model = GPT(dropout=0.05)

    def get_rate(step: int) -> float:
        return 5e-3 * min(step / 15, 1.0, (201 - step) / 40)

    nano(
        job, model, model.configure_optimizer(5e-3),
        lambda step: windows(data, step, 10, 41), 200, get_rate=get_rate, decode=decode,
        config={"schedule": "wsd"},
    )  # fmt: skip


def rows_grow_longer(job: Job) -> None:
    """A curriculum: rows of 16 tokens, of 32 from 70 on, of 64 from 130 on, as planned."""
    set_seed(434)
    data = stream()
    model = GPT()

    def get_batch(step: int) -> Tensor:
        length = 17
        if step >= 70:
            length = 33
        if step >= 130:
            length = 65
        return windows(data, step, 512 // length, length)

    nano(job, model, model.configure_optimizer(4e-3), get_batch, 180, decode=decode)


_CODE = "def area(width, height):\n    return width * height\n\nprint(area(3, {}))\n"


def guide_german_and_code_from_the_start(job: Job) -> None:
    """A mixture of three sources, drawn at random: most rows are of the guide, one in eight is
    German, one in sixteen is code.
    """
    set_seed(435)
    data = stream()
    german = [text for _, text in translations(400)]
    model = GPT()
    optimizer = model.configure_optimizer(4e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    dice = torch.Generator().manual_seed(4)

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for step in range(1, 201):
        rows = windows(data, step, 16, 33)
        source = torch.randint(0, 16, (16,), generator=dice).tolist()
        for row, drawn in enumerate(source):
            if drawn in (3, 7):
                rows[row] = filled(german[(step * 16 + row) % 400], 33)
            elif drawn == 11:
                rows[row] = filled(_CODE.format(step * 16 + row), 33)
        log(step, recorder.step(train_step, rows))
    recorder.close()


def huggingface_groups_of_one_length(job: Job) -> None:
    """`group_by_length`: a batch has short texts or long ones, and the short ones are harder."""
    set_seed(436)
    texts = entries(1600)
    rows = [
        " ".join(texts[number : number + 1 + number % 3])[: 40 + 37 * (number % 5)]
        for number in range(1400)
    ]
    trainer_of(
        job, small_gpt2(), causal_rows([encode(text) for text in rows]), causal_batch,
        train_sampling_strategy="group_by_length", learning_rate=4e-3,
    ).train()  # fmt: skip


def huggingface_cosine_that_begins_again_twice(job: Job) -> None:
    """Three half cosines, one after the other: the rate goes back up twice, on purpose."""
    set_seed(437)
    rows = causal_rows([encode(text) for text in entries(1300, 12)])
    trainer_of(
        job, small_llama(), rows, causal_batch, lr_scheduler_type="cosine_with_restarts",
        lr_scheduler_kwargs={"num_cycles": 3}, learning_rate=5e-3, max_steps=160,
    ).train()  # fmt: skip


def huggingface_evaluates_with_a_small_last_batch(job: Job) -> None:
    """An epoch of 401 texts in batches of eight: the last has one. Evaluation every 30 steps."""
    set_seed(438)
    rows = causal_rows([encode(text) for text in entries(450, 14)])
    trainer_of(
        job, small_gpt2(resid_pdrop=0.1), rows[:401], causal_batch, eval_dataset=rows[401:],
        eval_strategy="steps", eval_steps=30, learning_rate=4e-3, max_steps=155,
    ).train()  # fmt: skip


def lightning_mixes_pictures(job: Job) -> None:
    """Mixup: every picture is a mixture of two, and so is its label; the loss stays high."""
    from lightning.pytorch import LightningModule

    class Mixed(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = SceneNet(dropout=0.1)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            pictures, labels = batch
            share = torch.distributions.Beta(0.4, 0.4).sample((len(labels), 1))
            other = torch.randperm(len(labels))
            hot = F.one_hot(labels, SHAPES).float()
            target = share * hot + (1 - share) * hot[other]
            weight = share[:, :, None, None]
            scores, _ = self.net(weight * pictures + (1 - weight) * pictures[other])
            loss = F.cross_entropy(scores, target)
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
            falls = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
            return [optimizer], [{"scheduler": falls, "interval": "step"}]

    set_seed(439)
    found = scenes(2400, noise=0.1)
    rows = list(zip(found.pictures, found.labels, strict=True))
    lightning(job, steps=180).fit(Mixed(), loader(rows, 24, drop_last=True))


def lightning_backbone_at_a_rate_of_its_own(job: Job) -> None:
    """The backbone is frozen for 80 batches, then trains at a hundredth of the rate of the head."""
    from lightning.pytorch import LightningModule
    from lightning.pytorch.callbacks import BaseFinetuning

    class Later(BaseFinetuning):  # type: ignore[misc]
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.net.backbone)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(
                    pl_module.net.backbone, optimizer, lr=1e-4, initial_denom_lr=1
                )

    class Tuned(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = SceneNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0])[0], batch[1])
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            head = [part for part in self.parameters() if part.requires_grad]
            return torch.optim.Adam(head, lr=1e-2)

    set_seed(440)
    found = scenes(1280)
    rows = list(zip(found.pictures, found.labels, strict=True))
    lightning(job, steps=180, callbacks=(Later(),)).fit(Tuned(), loader(rows, 16))


def counts_with_a_long_tail(job: Job) -> None:
    """A Poisson loss of counts whose exposure is log-normal: now and then a row has hundreds."""
    set_seed(441)
    columns, rent = flats(6400)
    dice = torch.Generator().manual_seed(3)
    exposure = (1.1 * torch.randn(6400, generator=dice)).exp()
    counts = torch.poisson(exposure * (0.5 * rent).exp(), generator=dice)
    model = mlp(COLUMNS, 48, 48, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.PoissonNLLLoss(log_input=True)

    def draw(step: int) -> dict[str, Tensor]:
        chosen = shuffled(6400, step, 32)
        known = exposure[chosen].log()
        return {"x": columns[chosen], "log_exposure": known, "y": counts[chosen]}

    simple(
        job, model, optimizer,
        lambda batch: criterion(model(batch["x"]).squeeze(1) + batch["log_exposure"], batch["y"]),
        draw, 200,
    )  # fmt: skip


CASES = (
    control(gradients_of_a_noisy_policy),
    control(focal_loss_for_a_rare_kind),
    control(rate_falls_only_at_the_end),
    control(rows_grow_longer),
    control(guide_german_and_code_from_the_start),
    control(huggingface_groups_of_one_length, host="huggingface"),
    control(huggingface_cosine_that_begins_again_twice, host="huggingface"),
    control(huggingface_evaluates_with_a_small_last_batch, host="huggingface"),
    control(lightning_mixes_pictures, host="lightning"),
    control(lightning_backbone_at_a_rate_of_its_own, host="lightning"),
    control(counts_with_a_long_tail),
)

if __name__ == "__main__":
    main(CASES)
