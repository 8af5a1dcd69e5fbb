"""Trainings of the fourth set with which nothing is wrong: resumes, precision, averages, order."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.fourth_data import (
    COLUMNS,
    decode,
    encode,
    entries,
    flats,
    scenes,
    shuffled,
    speech,
    stream,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
    Saved,
    causal_batch,
    causal_rows,
    cosine,
    log,
    pretrained,
    set_seed,
    trainer_of,
)
from benchmarks.field_cases.fourth_models import (
    GPT,
    Listener,
    SceneNet,
    Segmenter,
    add_adapters,
    mlp,
    small_gpt2,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import IterableDataset, WeightedRandomSampler

import sonde


# ---------------------------------------------------------------- exact resumes
def resume_with_scaler_schedule_and_generators(job: Job) -> None:
    """Half precision: weights, moments, schedule, scale, generators: all are in the checkpoint."""
    set_seed(481)
    data = stream()
    model = GPT(layers=1, dropout=0.1)
    optimizer = model.configure_optimizer(4e-3)
    scheduler = LambdaLR(optimizer, lambda step: cosine(step + 1, peak=1.0, warm=20, last=160))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=1000)
    parts: dict[str, Any] = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler
    }  # fmt: skip
    saved = Saved(job, at=70, killed=80, last=130)
    start = 0
    if saved.is_resumed:
        state = saved.read()
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
        start = state["iter_num"]
    recorder = sonde.Recorder(
        job.run, model, optimizer, decode=decode, scheduler=scheduler, scaler=scaler
    )
    recorder.num_updates = start

    def train_step(rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            logits, _ = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return loss.detach()

    def state_of() -> dict[str, Any]:
        whole: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        return {**whole, "rng": torch.get_rng_state()}

    for step in saved.steps(start, state_of):
        log(step, recorder.step(train_step, windows(data, step, 10, 25)))
    recorder.close()


def resume_huggingface_with_its_adapters(job: Job) -> None:
    """Adapters beside frozen weights, and dropout; the Trainer restores all of it."""
    set_seed(482)
    model = pretrained(small_llama(attention_dropout=0.1))
    add_adapters(model, ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"), rank=8)
    rows = causal_rows([encode(german) for _, german in translations(1300)])
    host = trainer_of(
        job, model, rows, causal_batch, learning_rate=1e-2, max_steps=160, weight_decay=0.0,
        lr_scheduler_type="cosine",
    )  # fmt: skip
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "checkpoint-100")
    host.train(resume_from_checkpoint=path)


def resume_lightning_in_the_middle_of_a_cycle(job: Job) -> None:
    """`fit` with `ckpt_path`: one cycle of rate and momentum goes on where it was."""
    from lightning.pytorch import LightningModule

    class Maps(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Segmenter()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1], label_smoothing=0.02)
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            cycle = OneCycleLR(optimizer, max_lr=6e-3, total_steps=181)
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]

    set_seed(483)
    found = scenes(2160)
    rows = list(zip(found.pictures, found.masks, strict=True))
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    lightning(job, steps=160).fit(Maps(), loader(rows, 12), ckpt_path=path)


def resume_with_teacher_and_own_generator(job: Job) -> None:
    """A student learns from labels and from the average of its own weights; pictures are shifted
    with a generator of one's own. Both are in the checkpoint.
    """
    set_seed(484)
    found = scenes(1920)
    model = SceneNet(dropout=0.1)
    teacher = SceneNet(dropout=0.1)
    teacher.load_state_dict(model.state_dict())
    teacher.requires_grad_(False).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    dice = torch.Generator().manual_seed(5)
    saved = Saved(job, at=90, killed=101, last=150)
    parts: dict[str, Any] = {"model": model, "teacher": teacher, "optimizer": optimizer}
    start = 0
    if saved.is_resumed:
        state = saved.read()
        for name, part in parts.items():
            part.load_state_dict(state[name])
        dice.set_state(state["dice"])
        torch.set_rng_state(state["rng"])
        start = state["iter_num"]
    recorder = sonde.Recorder(job.run, model, optimizer, teacher=teacher)
    recorder.num_updates = start

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        kind, _ = model(batch[0])
        with torch.no_grad():
            wanted = teacher(batch[0])[0].softmax(1)
        loss = F.cross_entropy(kind, batch[1]) + 0.3 * F.mse_loss(kind.softmax(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, part in zip(teacher.parameters(), model.parameters(), strict=True):
                kept.lerp_(part, 0.02)
        return loss.detach()

    def state_of() -> dict[str, Any]:
        whole: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        return {**whole, "dice": dice.get_state(), "rng": torch.get_rng_state()}

    for step in saved.steps(start, state_of):
        chosen = shuffled(1920, step, 24)
        far = torch.randint(-2, 3, (2,), generator=dice).tolist()
        pictures = torch.roll(found.pictures[chosen], far, (2, 3))
        log(step, recorder.step(train_step, (pictures, found.labels[chosen])))
    recorder.close()


# ---------------------------------------------------------------- precision
def scaler_skips_while_it_finds_its_scale(job: Job) -> None:
    """Speech in half precision: the first scale is far too high, six updates or so are skipped, and
    from then on none is.
    """
    set_seed(485)
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=1000)
    recorder = sonde.Recorder(job.run, model, optimizer, scaler=scaler)

    def train_step(batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            scores, num = model(batch.frames, batch.num_frames)
        loss = F.ctc_loss(
            scores.float().transpose(0, 1), batch.phones, num, batch.num_phones, reduction="sum"
        ) / len(num)  # fmt: skip
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for step in range(1, 151):
        log(step, recorder.step(train_step, speech(step, 12)))
        if step in (1, 5, 10, 20, 100):
            print(f"step {step}: scale {scaler.get_scale():.0f}")
    recorder.close()


def bfloat16_with_master_weights(job: Job) -> None:
    """Weights in bfloat16 for the forward and backward, a copy in float32 that is updated."""
    set_seed(486)
    data = stream()
    master = GPT()
    model = GPT()
    model.load_state_dict(master.state_dict())
    model.to(torch.bfloat16)
    optimizer = master.configure_optimizer(4e-3)
    recorder = sonde.Recorder(job.run, master, optimizer, decode=decode)

    def train_step(rows: Tensor) -> Tensor:
        logits, _ = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        recorder.loss(loss)
        loss.backward()
        pairs = list(zip(master.parameters(), model.parameters(), strict=True))
        for kept, part in pairs:
            kept.grad = None if part.grad is None else part.grad.float()
            part.grad = None
        nn.utils.clip_grad_norm_(master.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, part in pairs:
                part.copy_(kept)
        return loss.detach()

    for step in range(1, 161):
        log(step, recorder.step(train_step, windows(data, step, 10, 33)))
    recorder.close()


def huggingface_computes_activations_again(job: Job) -> None:
    """Gradient checkpointing and accumulation over two batches, in bfloat16 autocast."""
    set_seed(487)
    rows = causal_rows([encode(text) for text in entries(1600, 33)])
    trainer_of(
        job, small_gpt2(n_layer=2), rows, causal_batch, gradient_checkpointing=True, bf16=True,
        gradient_checkpointing_kwargs={"use_reentrant": False}, gradient_accumulation_steps=2,
        per_device_train_batch_size=4, learning_rate=4e-3, max_steps=110,
    ).train()  # fmt: skip


def average_of_the_weights_is_evaluated(job: Job) -> None:
    """An average of the weights in float32; every 30 updates it is swapped in for an evaluation and
    swapped out again.
    """
    set_seed(488)
    columns, rent = flats(6400)
    model = mlp(COLUMNS, 64, 64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    kept = {name: part.detach().clone() for name, part in model.named_parameters()}
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.huber_loss(model(batch[0]).squeeze(1), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, part in model.named_parameters():
            kept[name].lerp_(part.detach(), 0.02)
        return loss.detach()

    for step in range(1, 201):
        chosen = shuffled(5600, step, 32)
        log(step, recorder.step(train_step, (columns[chosen], rent[chosen])))
        if step % 30 == 0:
            own = {name: part.detach().clone() for name, part in model.named_parameters()}
            model.load_state_dict(kept)
            model.eval()
            with torch.no_grad():
                error = F.mse_loss(model(columns[5600:]).squeeze(1), rent[5600:])
            print(f"error of the average {float(error):.4f}")
            model.load_state_dict(own)
            model.train()
    recorder.close()


# ---------------------------------------------------------------- order
def few_rows_many_times(job: Job) -> None:
    """A set of 120 rows, fifteen epochs in another order each: fine-tuning as planned."""
    set_seed(489)
    rows = windows(stream(), 7, 120, 33)
    model = GPT(dropout=0.2)
    optimizer = model.configure_optimizer(2e-3)
    recorder = sonde.Recorder(
        job.run, model, optimizer, decode=decode, sample_ids=lambda batch: batch["ids"]
    )

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        loss: Tensor = model(tokens[:, :-1], tokens[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 151):
        ids = shuffled(120, step, 12)
        log(step, recorder.step(train_step, {"ids": ids, "input_ids": rows[ids]}))
    recorder.close()


def huggingface_streams_through_a_buffer(job: Job) -> None:
    """A dataset that is iterated, shuffled in a buffer of 200 texts."""

    class Buffered(IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            dice = torch.Generator().manual_seed(6)
            buffer: list[str] = []
            for text in entries(2000, 34):
                buffer.append(text)
                if len(buffer) > 200:
                    drawn = int(torch.randint(len(buffer), (1,), generator=dice))
                    yield causal_rows([encode(buffer.pop(drawn))])[0]

    set_seed(490)
    trainer_of(job, small_llama(), Buffered(), causal_batch, learning_rate=5e-3).train()


def lightning_draws_rare_kinds_more_often(job: Job) -> None:
    """One kind is six times rarer; a sampler with replacement makes up for it."""
    set_seed(491)
    found = scenes(3200)
    keep = (found.labels != 1) | (torch.arange(3200) % 6 == 0)
    labels = found.labels[keep]
    rows = list(zip(found.pictures[keep], labels, strict=True))
    weights = 1 / torch.bincount(labels).double()[labels]
    sampler = WeightedRandomSampler(weights.tolist(), len(rows))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0])[0], batch[1])

    module = lightning_module(SceneNet(dropout=0.1), loss_of, lr=2e-3)
    lightning(job, steps=150).fit(module, loader(rows, 16, shuffle=False, sampler=sampler))


CASES = (
    control(resume_with_scaler_schedule_and_generators),
    control(resume_huggingface_with_its_adapters, host="huggingface"),
    control(resume_lightning_in_the_middle_of_a_cycle, host="lightning"),
    control(resume_with_teacher_and_own_generator),
    control(scaler_skips_while_it_finds_its_scale),
    control(bfloat16_with_master_weights),
    control(huggingface_computes_activations_again, host="huggingface"),
    control(average_of_the_weights_is_evaluated),
    control(few_rows_many_times),
    control(huggingface_streams_through_a_buffer, host="huggingface"),
    control(lightning_draws_rare_kinds_more_often, host="lightning"),
)

if __name__ == "__main__":
    main(CASES)
