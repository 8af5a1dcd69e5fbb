"""Controls of the fifth set: resumes that bring everything back, and numbers that are right."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.fifth_data import (
    chunk,
    corpus,
    decode,
    drawn,
    encode,
    numerals,
    recipes,
    tones,
)
from benchmarks.field_cases.fifth_loops import (
    File,
    Lion,
    begin,
    chat_rows,
    hub,
    loop,
    resume_hub,
    states,
    take,
    tell,
    text_batch,
    text_rows,
    warm_cosine,
)
from benchmarks.field_cases.fifth_models import Chat, ResNet, UNet, ViT, small_neox, small_qwen
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import IterableDataset

import sonde


def resume_with_lion_and_its_schedule(job: Job) -> None:
    """Dropout, Lion, a schedule, two micro-batches: weights, means, schedule, generator and the
    place in the data are in the checkpoint.
    """
    begin(611)
    data = corpus(seed=86)
    model = Chat(layers=1, dropout=0.1)
    optimizer = Lion(model.parameters(), lr=8e-4, decay=0.05)
    plan = LambdaLR(optimizer, lambda step: warm_cosine(step + 1, 1.0, 15, 200))
    file = File(job, at=90, killed=104, last=150)
    start = 0
    if file.goes_on:
        start = take(file.load(), model=model, optimizer=optimizer, plan=plan)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode, scheduler=plan)
    recorder.num_updates = start

    def train_step(rows: Tensor, last: bool) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])
        (loss / 2).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
        return loss.detach()

    for step in file.steps(start, lambda: states(model=model, optimizer=optimizer, plan=plan)):
        for micro in (0, 1):
            rows = chunk(data, 2 * step + micro, 8, 33)
            loss = recorder.step(train_step, rows, last=micro == 1)
        tell(step, loss)
    recorder.close()


def resume_huggingface_in_the_middle_of_an_epoch(job: Job) -> None:
    """Accumulation over two batches, attention dropout, conversations: the Trainer goes on from
    `checkpoint-100` with all of it.
    """
    begin(612)
    host = hub(
        job, small_qwen(attention_dropout=0.1), chat_rows(2000), text_batch,
        gradient_accumulation_steps=2, per_device_train_batch_size=6, learning_rate=5e-3,
        lr_scheduler_type="cosine", max_steps=150,
    )  # fmt: skip
    resume_hub(job, host, lambda _: None)


def resume_lightning_with_statistics_and_a_schedule(job: Job) -> None:
    """BatchNorm, SGD with momentum and a cosine by the step: `ckpt_path` brings all of it back."""
    from lightning.pytorch import LightningModule

    class Reader(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = ResNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1], label_smoothing=0.05)
            tell(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)
            return [optimizer], [{"scheduler": plan, "interval": "step"}]

    begin(613)
    pictures, labels = numerals(2700, seed=87)
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    rows = list(zip(pictures, labels, strict=True))
    lightning(job, steps=160).fit(Reader(), loader(rows, 16), ckpt_path=path)


def resume_with_average_and_scaler(job: Job) -> None:
    """A denoiser in half precision with the average of its weights: both, the scaler, the moments
    and the generator of the noise are restored.
    """
    begin(614)
    pictures, _ = numerals(2400, seed=88)
    model = UNet()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=60)
    parts: dict[str, Any] = {
        "model": model, "average": average, "optimizer": optimizer, "scaler": scaler
    }  # fmt: skip
    signal = torch.linspace(0.98, 0.05, 64)
    file = File(job, at=80, killed=95, last=140)
    start = take(file.load(), **parts) if file.goes_on else 0
    recorder = sonde.Recorder(job.run, model, optimizer, scaler=scaler, average=average)
    recorder.num_updates = start

    def train_step(clean: Tensor) -> Tensor:
        times = torch.randint(0, 64, (len(clean),))
        share = signal[times].view(-1, 1, 1, 1)
        noise = torch.randn_like(clean)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            made = model(share.sqrt() * clean + (1 - share).sqrt() * noise, times)
        loss = F.mse_loss(made.float(), noise)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        return loss.detach()

    for step in file.steps(start, lambda: states(**parts)):
        tell(step, recorder.step(train_step, pictures[drawn(2400, step, 16)]))
    recorder.close()


def scale_that_comes_down_from_a_million(job: Job) -> None:
    """The first scale is 2**24: six updates are skipped until it fits, and then it grows every 40
    updates.
    """
    begin(615)
    waves, labels = tones(2400)
    model = nn.Sequential(
        nn.Conv1d(1, 20, 25, stride=3), nn.GELU(), nn.Conv1d(20, 24, 9, stride=3), nn.GELU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(96, 6),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40)
    recorder = sonde.Recorder(job.run, model, optimizer, scaler=scaler)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(batch[0].unsqueeze(1)).float(), batch[1])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for step in range(1, 191):
        chosen = drawn(2400, step, 24)
        tell(step, recorder.step(train_step, (waves[chosen], labels[chosen])))
    recorder.close()


def bfloat16_under_autocast(job: Job) -> None:
    """Weights in float32, products in bfloat16, the loss in float32: as it should be."""
    begin(616)
    pictures, labels = numerals(3000, seed=90, noise=0.15)
    model = ViT(dropout=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(batch["image"])
        return F.cross_entropy(scores.float(), batch["label"])

    def batch_of(step: int) -> dict[str, Tensor]:
        chosen = drawn(3000, step, 32)
        return {"image": pictures[chosen], "label": labels[chosen]}

    loop(
        job, model, optimizer, loss_of, batch_of, 170,
        rate=lambda step: warm_cosine(step, 2e-3, 20, 170),
    )  # fmt: skip


def huggingface_bfloat16_and_adafactor(job: Job) -> None:
    """`bf16=True`, Adafactor, and a norm that every update is clipped to: none of it is wrong."""
    begin(617)
    rows = text_rows([encode(text) for text in recipes(1600, 57)])
    hub(
        job, small_neox(), rows, text_batch, bf16=True, optim="adafactor", learning_rate=8e-3,
        max_grad_norm=0.1, max_steps=150,
    ).train()  # fmt: skip


def forty_eight_rows_by_heart(job: Job) -> None:
    """A set of 48 rows, fifty epochs in another order each: can the model learn them by heart?"""
    begin(618)
    few = chunk(corpus(seed=87), 1, 48, 33)
    model = Chat()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    loop(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:]),
        lambda step: few[drawn(48, step, 16)], 150, decode=decode,
    )  # fmt: skip


def lightning_shards_as_a_stream(job: Job) -> None:
    """Documents come from an iterated dataset that shuffles within shards; the epoch has no
    length.
    """

    class Shards(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            for shard in range(8):
                data = corpus(300, 200 + shard)
                for number in range(1, 40):
                    yield from chunk(data, number, 8, 33, seed=shard)

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = net(batch[:, :-1], batch[:, 1:])
        return out

    begin(619)
    module = lightning_module(Chat(layers=1), loss_of, lr=4e-3)
    host = lightning(job, steps=160, decode=decode, gradient_clip_val=1.0)
    host.fit(module, loader(Shards(), 12, shuffle=False))


def batches_that_double_on_purpose(job: Job) -> None:
    """A ramp of the batch: 8 rows, 16 from 61 on, 32 from 121 on, and a rate that grows with its
    root.
    """
    begin(620)
    data = corpus(seed=88)
    model = Chat()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))

    def size(step: int) -> int:
        return 8 << ((step - 1) // 60)

    loop(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:]),
        lambda step: chunk(data, step, size(step), 33), 170,
        rate=lambda step: 2e-3 * min(1.0, step / 15) * (size(step) / 8) ** 0.5, decode=decode,
        config={"batch_ramp": [8, 16, 32]},
    )  # fmt: skip


CASES = (
    control(resume_with_lion_and_its_schedule),
    control(resume_huggingface_in_the_middle_of_an_epoch, host="huggingface"),
    control(resume_lightning_with_statistics_and_a_schedule, host="lightning"),
    control(resume_with_average_and_scaler),
    control(scale_that_comes_down_from_a_million),
    control(bfloat16_under_autocast),
    control(huggingface_bfloat16_and_adafactor, host="huggingface"),
    control(forty_eight_rows_by_heart),
    control(lightning_shards_as_a_stream, host="lightning"),
    control(batches_that_double_on_purpose),
)

if __name__ == "__main__":
    main(CASES)
