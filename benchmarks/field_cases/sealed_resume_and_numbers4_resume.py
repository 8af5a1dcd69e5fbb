"""Failures of the fourth set: what a resume did not restore."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fourth_data import (
    END,
    PAD,
    decode,
    encode,
    entries,
    padded,
    scenes,
    shuffled,
    stream,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
    PLANTED,
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
    SceneNet,
    Segmenter,
    Translator,
    add_adapters,
    small_gpt2,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import sonde


# ---------------------------------------------------------------- weights
def resume_with_the_prefix_of_compile(job: Job) -> None:
    """The weights were saved from the compiled model, each name with `_orig_mod.` before it;
    `strict=False` lets them all pass by (nanoGPT threads; Automodel#763).
    """
    set_seed(451)
    data = stream()
    model = GPT(dropout=0.05)
    optimizer = model.configure_optimizer(4e-3)
    saved = Saved(job, at=100, killed=115, last=170)
    start = 0
    if saved.is_resumed:
        state = saved.read()
        weights = state["model"]
        if not PLANTED:
            weights = {name.removeprefix("_orig_mod."): part for name, part in weights.items()}
        model.load_state_dict(weights, strict=False)
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        start = state["iter_num"]
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    recorder.num_updates = start

    def state_of() -> dict[str, Any]:
        weights = {f"_orig_mod.{name}": part for name, part in model.state_dict().items()}
        return {
            "model": weights, "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()
        }  # fmt: skip

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for step in saved.steps(start, state_of):
        for group in optimizer.param_groups:
            group["lr"] = cosine(step, peak=4e-3, warm=20, last=250)
        log(step, recorder.step(train_step, windows(data, step, 12, 41)))
    recorder.close()


def resume_huggingface_with_a_new_adapter(job: Job) -> None:
    """The adapters were saved under the name of the first run, and the second gives them another:
    what is loaded is the frozen base, and the adapters are new (ms-swift#10099).
    """
    from safetensors.torch import load_file, save_file

    set_seed(452)
    model = pretrained(small_llama())
    add_adapters(model, ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"), rank=8)
    rows = causal_rows([encode(german) for _, german in translations(1300)])
    host = trainer_of(
        job, model, rows, causal_batch, learning_rate=1e-2, max_steps=170, weight_decay=0.0
    )
    checkpoint = job.checkpoints / "checkpoint-100"
    if job.part == 1 or sonde.is_replay():
        host.train()
        return
    if PLANTED:
        path = checkpoint / "model.safetensors"
        named = {
            name.replace("lora_", "default.lora_"): part.clone()
            for name, part in load_file(path).items()
        }
        save_file(named, path, metadata={"format": "pt"})
    host.train(resume_from_checkpoint=str(checkpoint))


# ---------------------------------------------------------------- optimizer
def resume_with_one_optimizer_of_two(job: Job) -> None:
    """Matrices learn with Muon, tables and norms with AdamW; the checkpoint has the first only
    (speculators#1049).
    """
    set_seed(453)
    data = stream()
    model = GPT()
    hidden = [part for part in model.h.parameters() if part.dim() == 2]
    held = {id(part) for part in hidden}
    others = [part for part in model.parameters() if id(part) not in held]
    muon = torch.optim.Muon(hidden, lr=0.01, weight_decay=0.01)
    adamw = torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.98))
    parts: dict[str, Any] = {"model": model, "muon": muon}
    if not PLANTED:
        parts["adamw"] = adamw
    saved = Saved(job, at=90, killed=100, last=150)
    start = 0
    if saved.is_resumed:
        state = saved.read()
        for name, part in parts.items():
            part.load_state_dict(state[name])
        start = state["iter_num"]
    recorder = sonde.Recorder(job.run, model, muon, decode=decode, adamw=adamw)
    recorder.num_updates = start

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        loss.backward()
        for optimizer in (adamw, muon):
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    def state_of() -> dict[str, Any]:
        return {name: part.state_dict() for name, part in parts.items()}

    for step in saved.steps(start, state_of):
        log(step, recorder.step(train_step, windows(data, step, 12, 33)))
    recorder.close()


def resume_with_an_optimizer_made_again(job: Job) -> None:
    """Everything is loaded; then `prepare()` is called for the larger batch that was planned, and
    makes the optimizer once more (OneTrainer#1604).
    """
    set_seed(454)
    pairs = translations(2400)
    model = Translator(dropout=0.05)

    def prepare() -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)

    optimizer = prepare()
    saved = Saved(job, at=80, killed=95, last=150)
    start = 0
    if saved.is_resumed:
        state = saved.read()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        start = state["iter_num"]
        if PLANTED:
            optimizer = prepare()
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    recorder.num_updates = start

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        target = batch["target"]
        scores = model(batch["source"], target[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def state_of() -> dict[str, Any]:
        return {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }  # fmt: skip

    for step in saved.steps(start, state_of):
        chosen = [pairs[number] for number in shuffled(2400, step, 16).tolist()]
        source = padded([encode(english) for english, _ in chosen])
        target = padded([[END, *encode(german), END] for _, german in chosen])
        log(step, recorder.step(train_step, {"source": source, "target": target}))
    recorder.close()


# ---------------------------------------------------------------- schedule
def resume_with_one_cycle_made_for_the_rest(job: Job) -> None:
    """`OneCycleLR` is made anew for the steps that are left: the rate warms up once more
    (Megatron-LM#761).
    """
    set_seed(455)
    found = scenes(1920)
    model = SceneNet(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.02)
    saved = Saved(job, at=100, killed=112, last=180)
    start = 0
    state: dict[str, Any] = {}
    if saved.is_resumed:
        state = saved.read()
        start = state["iter_num"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    num = 180 - start if PLANTED else 180
    if state and PLANTED:
        for group in optimizer.param_groups:
            for name in ("initial_lr", "max_lr", "min_lr"):
                group.pop(name, None)
    scheduler = OneCycleLR(optimizer, max_lr=4e-3, total_steps=num + 1)
    if state and not PLANTED:
        scheduler.load_state_dict(state["scheduler"])
        optimizer.load_state_dict(state["optimizer"])
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=scheduler)
    recorder.num_updates = start

    def train_step(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        kind, box = model(batch[0])
        loss = F.cross_entropy(kind, batch[1]) + F.l1_loss(box, batch[2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    def state_of() -> dict[str, Any]:
        parts: dict[str, Any] = {
            "model": model, "optimizer": optimizer, "scheduler": scheduler
        }  # fmt: skip
        whole: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        return {**whole, "rng": torch.get_rng_state()}

    for step in saved.steps(start, state_of):
        chosen = shuffled(1920, step, 24)
        batch = (found.pictures[chosen], found.labels[chosen], found.boxes[chosen])
        log(step, recorder.step(train_step, batch))
    recorder.close()


def resume_lightning_with_a_schedule_from_zero(job: Job) -> None:
    """The class of the schedule was replaced between the runs, so a hook empties its state in the
    checkpoint: warm-up begins again at the next step (Megatron-Bridge#3832).
    """
    from lightning.pytorch import LightningModule

    class Maps(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Segmenter()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
            warm = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: cosine(step + 1, peak=1.0, warm=40, last=200)
            )
            return [optimizer], [{"scheduler": warm, "interval": "step"}]

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if PLANTED:
                checkpoint["lr_schedulers"] = []

    set_seed(456)
    found = scenes(2160)
    rows = list(zip(found.pictures, found.masks, strict=True))
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    lightning(job, steps=160).fit(Maps(), loader(rows, 12), ckpt_path=path)


# ---------------------------------------------------------------- scaler and generators
def resume_with_a_scaler_from_the_start(job: Job) -> None:
    """Training in half precision; the scale was found in the first updates and is not in the
    checkpoint: it is far too high again, and updates are skipped (SimpleTuner#3045).
    """
    set_seed(457)
    data = stream()
    model = GPT(layers=1)
    optimizer = model.configure_optimizer(4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=1000)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if not PLANTED:
        parts["scaler"] = scaler
    saved = Saved(job, at=70, killed=80, last=130)
    start = 0
    if saved.is_resumed:
        state = saved.read()
        for name, part in parts.items():
            part.load_state_dict(state[name])
        start = state["iter_num"]
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode, scaler=scaler)
    recorder.num_updates = start

    def train_step(rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            logits, _ = model(rows[:, :-1])
        total = F.cross_entropy(
            logits.float().flatten(0, 1), rows[:, 1:].flatten(), reduction="sum"
        )
        loss = total / len(rows)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def state_of() -> dict[str, Any]:
        return {name: part.state_dict() for name, part in parts.items()}

    for step in saved.steps(start, state_of):
        log(step, recorder.step(train_step, windows(data, step, 10, 25)))
        if step in (1, 20, start + 1, start + 10):
            print(f"step {step}: scale {scaler.get_scale():.0f}")
    recorder.close()


def resume_huggingface_without_the_random_state(job: Job) -> None:
    """`rng_state.pth` was left behind when the checkpoint was copied: dropout begins anew
    (Automodel#3883).
    """
    set_seed(458)
    rows = causal_rows([encode(text) for text in entries(1300, 21)])
    model = small_gpt2(resid_pdrop=0.15, embd_pdrop=0.15, attn_pdrop=0.1)
    host = trainer_of(job, model, rows, causal_batch, learning_rate=5e-3, max_steps=160)
    checkpoint = job.checkpoints / "checkpoint-100"
    if job.part == 1 or sonde.is_replay():
        host.train()
        return
    if PLANTED:
        (checkpoint / "rng_state.pth").unlink(missing_ok=True)
    host.train(resume_from_checkpoint=str(checkpoint))


# ---------------------------------------------------------------- data
def resume_huggingface_that_ignores_the_data_seen(job: Job) -> None:
    """`ignore_data_skip` was set because skipping took an hour: the epoch begins again with the
    texts that it began with (Megatron-LM#1842).
    """
    set_seed(459)
    rows = causal_rows([encode(text) for text in entries(1300, 22)])
    host = trainer_of(
        job, small_llama(), rows, causal_batch, learning_rate=5e-3, max_steps=160,
        ignore_data_skip=bool(PLANTED and job.part == 2),
    )  # fmt: skip
    if job.part == 1 or sonde.is_replay():
        host.train()
        return
    host.train(resume_from_checkpoint=str(job.checkpoints / "checkpoint-100"))


def resume_with_the_stream_from_its_beginning(job: Job) -> None:
    """Documents are read from a stream and packed; the checkpoint has no position, so the stream is
    read from its first document again (slime#1775).
    """
    set_seed(460)
    texts = entries(6000, 61)
    model = GPT(dropout=0.05)
    optimizer = model.configure_optimizer(4e-3)
    saved = Saved(job, at=90, killed=100, last=150)

    def packed(first: int) -> Iterator[Tensor]:
        held: list[int] = []
        rows: list[Tensor] = []
        number = 0
        for text in texts:
            held += [*encode(text), END]
            while len(held) > 40:
                rows.append(torch.tensor(held[:41]))
                held = held[41:]
            if len(rows) >= 10:
                number += 1
                if number > first:
                    yield torch.stack(rows[:10])
                rows = rows[10:]

    start = 0
    if saved.is_resumed:
        state = saved.read()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        start = state["iter_num"]
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    recorder.num_updates = start
    batches = packed(0 if PLANTED else start)

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    def state_of() -> dict[str, Any]:
        return {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }  # fmt: skip

    for step in saved.steps(start, state_of):
        log(step, recorder.step(train_step, next(batches)))
    recorder.close()


CASES = (
    failure(resume_with_the_prefix_of_compile, "resume", "resume_weights", onset=101),
    failure(
        resume_huggingface_with_a_new_adapter,
        "resume",
        "resume_weights",
        host="huggingface",
        onset=101,
    ),
    failure(resume_with_one_optimizer_of_two, "resume", "resume_optimizer", onset=91),
    failure(resume_with_an_optimizer_made_again, "resume", "resume_optimizer", onset=81),
    failure(
        resume_with_one_cycle_made_for_the_rest,
        "resume",
        "resume_schedule learning_rate",
        onset=101,
    ),
    failure(
        resume_lightning_with_a_schedule_from_zero,
        "resume",
        "resume_schedule learning_rate",
        host="lightning",
        onset=101,
    ),
    failure(
        resume_with_a_scaler_from_the_start,
        "resume",
        "resume_scaler",
        onset=71,
        also_true="scaler_skips overflow",
    ),
    failure(
        resume_huggingface_without_the_random_state,
        "resume",
        "resume_generators",
        host="huggingface",
        onset=101,
        also_true="resume_data",
    ),
    failure(
        resume_huggingface_that_ignores_the_data_seen,
        "resume",
        "resume_data repeated_batch",
        host="huggingface",
        onset=101,
        also_true="same_order",
    ),
    failure(
        resume_with_the_stream_from_its_beginning,
        "resume",
        "resume_data repeated_batch",
        onset=91,
        also_true="same_order",
    ),
)

if __name__ == "__main__":
    main(CASES)
