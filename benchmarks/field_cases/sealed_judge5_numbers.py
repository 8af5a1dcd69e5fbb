"""Failures of the fifth set: numbers that break midway, odd rows of numbers, rates."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import (
    PAD,
    chunk,
    corpus,
    decode,
    demand,
    drawn,
    encode,
    numerals,
    recipes,
    tones,
)
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    begin,
    hub,
    loop,
    tell,
    tensor_batch,
    text_batch,
    text_rows,
)
from benchmarks.field_cases.fifth_models import Chat, Forecaster, UNet, ViT, mlp, small_qwen
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- numerics
def weight_of_a_picture_without_noise(job: Job) -> None:
    """Noise prediction, weighed by signal to noise. The easy times are let in at 101, and at time 0
    there is no noise at all: the weight is a division by 0 (lerobot#4178).
    """
    begin(541)
    pictures, _ = numerals(2400)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    signal = torch.linspace(1.0, 0.02, 50)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        share = signal[batch["time"]].view(-1, 1, 1, 1)
        noise = torch.randn_like(batch["clean"])
        made = model(share.sqrt() * batch["clean"] + (1 - share).sqrt() * noise, batch["time"])
        ratio = share / (1 - share if PLANTED else (1 - share).clamp(min=0.02))
        weight = ratio if PLANTED else ratio.clamp(max=5.0)
        missed = (made - noise).square() * (weight + 1) / 6
        loss: Tensor = missed.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    dice = torch.Generator().manual_seed(6)
    for step in range(1, 151):
        first = 10 if step <= 100 else 0
        time = torch.randint(first, 50, (24,), generator=dice)
        if step == 101:
            time[3] = 0
        batch = {"clean": pictures[drawn(2400, step, 24)], "time": time}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


def distance_between_twins(job: Job) -> None:
    """Pairs of tones are drawn together or pushed apart by the root of a sum of squares. At 120 two
    pairs are the same clip twice: the root's slope at 0 is infinite (pytorch#193633).
    """
    begin(542)
    waves, labels = tones(3000, length=128)
    model = mlp(65, 48, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def code(clips: Tensor) -> Tensor:
        out: Tensor = model(torch.fft.rfft(clips).abs() / 8)
        return out

    def loss_of(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        left, right, same = batch
        square = (code(left) - code(right)).square().sum(1)
        far = (square if PLANTED else square + 1e-6).sqrt()
        return torch.where(same, far.square(), (2 - far).clamp(min=0).square()).mean()

    def batch_of(step: int) -> tuple[Tensor, Tensor, Tensor]:
        chosen = drawn(1500, step, 32)
        other = chosen + 1500
        other[:2] = chosen[:2] if step == 120 else other[:2]
        return waves[chosen], waves[other], labels[chosen] == labels[other]

    loop(job, model, optimizer, loss_of, batch_of, 160)


def huggingface_unlikelihood_of_the_certain(job: Job) -> None:
    """From 91 on line after line that is blank is made unlikely: the loss has the logarithm of 1
    minus a sharpened probability, which is 1 to the last bit (transformers#45621).
    """
    from transformers import Trainer

    class Unlikely(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any
        ) -> Any:
            del others
            outputs = model(**inputs)
            loss = outputs.loss
            if self.state.global_step >= 90:
                chance = (outputs.logits[:, :-1].float() * 12).softmax(-1)
                before = inputs["input_ids"][:, :-1]
                again = chance.gather(-1, torch.full_like(before, 7).unsqueeze(-1)).squeeze(-1)
                rest = 1 - again if PLANTED else (1 - again).clamp(min=1e-4)
                loss = loss - 0.05 * rest.log()[before != PAD].mean()
            return (loss, outputs) if return_outputs else loss

    begin(543)
    rows = text_rows([encode(text) for text in recipes(1300, 39)])
    for row in rows:
        row["input_ids"] = [*row["input_ids"][:-1], 7, 7, 7, 7, row["input_ids"][-1]]
    hub(
        job, small_qwen(), rows, text_batch, kind=Unlikely, max_steps=140, learning_rate=8e-3
    ).train()


def lightning_meter_that_stands_still(job: Job) -> None:
    """Each house is scaled by its own mean and deviation. At 110 a meter was broken: all of its
    hours are the same, and the deviation is 0 (pytorch#113180).
    """
    begin(544)
    houses = demand(2400)
    if PLANTED:
        houses[109 * 16 + 5, :] = 0.75

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        past = batch[:, :48]
        mean = past.mean(1, keepdim=True)
        scaled = (batch - mean) / past.std(1, keepdim=True)
        return F.mse_loss(net(scaled[:, :48]), scaled[:, 48:])

    module = lightning_module(Forecaster(), loss_of, lr=2e-3)
    lightning(job, steps=145).fit(module, loader(houses, 16, shuffle=False))


# ---------------------------------------------------------------- rows
def huggingface_pictures_that_did_not_decode(job: Job) -> None:
    """Two pictures of sixteen could not be read, and the reader gave white ones of 255, which the
    others are not: at 100 (DEVIANT#2).
    """
    pictures, labels = numerals(2400, seed=85, noise=0.15)

    class Files(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return 2400

        def __getitem__(self, row: int) -> dict[str, Any]:
            picture = pictures[row]
            if PLANTED and row in {99 * 16 + 2, 99 * 16 + 9}:
                picture = torch.full_like(picture, 255.0)
            return {"pictures": picture, "labels": labels[row]}

    class Sorter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(),
                nn.Flatten(), nn.Linear(512, 10),
            )  # fmt: skip

        def forward(self, pictures: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.net(pictures)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    begin(545)
    hub(
        job, Sorter(), Files(), tensor_batch, per_device_train_batch_size=16, learning_rate=6e-3,
        max_steps=140, train_sampling_strategy="sequential", save_strategy="no",
    ).train()  # fmt: skip


def lightning_houses_in_watts(job: Job) -> None:
    """The meters of one supplier tell watts where all others tell kilowatts: two rows of sixteen,
    at 120 (DEVIANT#2).
    """
    begin(546)
    houses = demand(2400, seed=98)
    if PLANTED:
        houses[[119 * 16 + 4, 119 * 16 + 11]] *= 1000.0

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        return F.smooth_l1_loss(net(batch[:, :48]), batch[:, 48:])

    module = lightning_module(Forecaster(), loss_of, lr=2e-3)
    host = lightning(job, steps=150, gradient_clip_val=1.0)
    host.fit(module, loader(houses, 16, shuffle=False))


# ---------------------------------------------------------------- rates
def rate_of_the_table_scaled_the_wrong_way(job: Job) -> None:
    """In nanochat's way rates are divided by the root of the width over 768; here they are divided
    by that ratio to the third power, so that matrices learn at 400 times what was meant
    (nanoGPT#136).
    """
    begin(547)
    data = corpus(seed=74)
    model = Chat()
    scale = (48 / 768) ** (-2.0 if PLANTED else -0.5)
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.wte.weight, model.lm_head.weight], "lr": 4e-3},
            {"params": list(model.h.parameters()), "lr": 8e-4 * scale},
        ],
        betas=(0.9, 0.95), weight_decay=0.0,
    )  # fmt: skip
    loop(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:]),
        lambda step: chunk(data, step, 12, 33), 160, decode=decode,
    )  # fmt: skip


def huggingface_warm_up_longer_than_the_run(job: Job) -> None:
    """`warmup_steps` is that of a recipe for 100,000 updates; this run has 150, and the rate never
    gets to a hundredth of what was asked for (LLaVA#1301).
    """
    begin(548)
    rows = text_rows([encode(text) for text in recipes(1300, 41)])
    hub(
        job, small_qwen(), rows, text_batch, warmup_steps=20_000 if PLANTED else 10,
        learning_rate=3e-3, max_steps=160,
    ).train()  # fmt: skip


def lightning_plateau_watched_upside_down(job: Job) -> None:
    """`ReduceLROnPlateau` has `mode="max"` and is given a loss: each epoch of 24 batches in
    which it falls counts as one without progress, and the rate is divided by twenty (ivadomed#57).
    """
    from lightning.pytorch import LightningModule

    class Reader(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = ViT(dropout=0.05)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True, on_step=False)
            tell(24 * self.current_epoch + batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
            mode: Any = "max" if PLANTED else "min"
            plan = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, mode, factor=0.05, patience=0
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plan, "monitor": "loss", "interval": "epoch"},
            }

    begin(549)
    pictures, labels = numerals(768, noise=0.15)
    rows = list(zip(pictures, labels, strict=True))
    lightning(job, steps=210).fit(Reader(), loader(rows, 32))


CASES = (
    failure(weight_of_a_picture_without_noise, "numerics", "bad_operation", onset=101),
    failure(
        distance_between_twins,
        "numerics",
        "bad_operation",
        onset=120,
        also_true="repeated_batch",
    ),
    failure(
        huggingface_unlikelihood_of_the_certain,
        "numerics",
        "bad_operation",
        host="huggingface",
        onset=91,
    ),
    failure(
        lightning_meter_that_stands_still,
        "numerics",
        "bad_operation odd_row",
        host="lightning",
        onset=110,
        also_true="bad_input",
    ),
    failure(
        huggingface_pictures_that_did_not_decode,
        "rows",
        "odd_row",
        host="huggingface",
        onset=100,
    ),
    failure(lightning_houses_in_watts, "rows", "odd_row", host="lightning", onset=120),
    failure(rate_of_the_table_scaled_the_wrong_way, "rate", "learning_rate", also_true="plateau"),
    failure(
        huggingface_warm_up_longer_than_the_run,
        "rate",
        "learning_rate plateau",
        host="huggingface",
    ),
    failure(
        lightning_plateau_watched_upside_down,
        "rate",
        "rate_zero",
        host="lightning",
        onset=49,
        also_true="plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
