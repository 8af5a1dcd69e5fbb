"""Sealed failures of the third set: resumes in frameworks, and of what is no part of a model."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import lightning
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import clicks, corpus, cut, drawn, glyphs
from benchmarks.field_cases.third_loops import PLANTED, Keeper, seed, tell, trainer
from benchmarks.field_cases.third_models import Decoder, GlyphNet, GlyphVAE, dense
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import sonde


class Normaliser:
    """Standardises columns by what it has seen so far; it is no module, and nobody saves it."""

    def __init__(self) -> None:
        self.mean = torch.zeros(10)
        self.square = torch.ones(10)

    def __call__(self, columns: Tensor) -> Tensor:
        self.mean = self.mean.lerp(columns.mean(0), 0.02)
        self.square = self.square.lerp(columns.square().mean(0), 0.02)
        spread = (self.square - self.mean.square()).clamp(min=0.01).sqrt()
        return (columns - self.mean) / spread


def resume_with_a_new_normaliser(job: Job) -> None:
    """The running mean and deviation of the columns are in no checkpoint and begin anew: the model
    is shown columns as it last saw them in its first steps (stable-baselines threads).
    """
    seed(311)
    model = dense(10, 48, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=200, killed=210, last=270)
    normalise = Normaliser()

    def load(state: dict[str, Any]) -> int:
        if not PLANTED:
            normalise.mean = state["mean"]
            normalise.square = state["square"]
        return keeper.load(state)

    def save(step: int) -> dict[str, Any]:
        return {**keeper.state(step), "mean": normalise.mean, "square": normalise.square}

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in keeper.steps(recorder, load, save):
        columns, clicked = clicks(step)
        seen = normalise(3.0 * columns + 12.0)
        tell(step, recorder.step(train_step, (seen, clicked)))


def resume_with_the_divergence_at_nothing(job: Job) -> None:
    """The weight of a VAE's second term rises with a counter of the script, which is 0 again after
    the resume: the loss is lower at once, and the code is free for a while.
    """
    seed(312)
    pictures, _ = glyphs(960, noise=0.1)
    model = GlyphVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=120, killed=130, last=190)
    counted = 0

    def load(state: dict[str, Any]) -> int:
        nonlocal counted
        start = keeper.load(state)
        counted = 0 if PLANTED else start
        return start

    def train_step(shown: Tensor) -> Tensor:
        nonlocal counted
        counted += 1
        made, mean, log_variance = model(shown)
        apart = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        weight = min(1.0, counted / 100)
        loss = F.mse_loss(made, shown, reduction="sum") / len(shown) + weight * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total: Tensor = loss
        return total

    for step in keeper.steps(recorder, load):
        tell(step, recorder.step(train_step, pictures[drawn(960, step, 32)]))


def resume_in_the_middle_of_an_update(job: Job) -> None:
    """The checkpoint is written after two of four micro-batches, whose gradients are lost: the next
    update has the other two alone. Nobody can see it afterwards.
    """
    seed(313)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=32, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode)
    saved = 4 * 60 + (2 if PLANTED else 0)
    keeper = Keeper(
        job, {"model": model, "optimizer": optimizer}, saved=saved, killed=4 * 70, last=4 * 110
    )

    def train_step(rows: Tensor, last: bool) -> Tensor:
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        (loss / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    for micro in keeper.steps(recorder):
        if micro == saved + 1 and job.part == 2:
            recorder.num_updates = 60
        rows = cut(texts.stream, micro, 4, 25)
        loss = recorder.step(train_step, rows, last=micro % 4 == 0)
        if micro % 4 == 0:
            tell(micro // 4, loss)


def resume_huggingface_without_generators(job: Job) -> None:
    """`rng_state.pth` was left out of the copy: dropout draws other numbers than it would have
    (Megatron-Bridge#4565).
    """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer

    seed(314)
    texts = corpus()
    rows = [{"row": cut(texts.stream, number, 1, 33)[0]} for number in range(1, 1001)]

    def collate(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([row["row"] for row in found])
        return {"input_ids": tokens, "labels": tokens}

    settings = GPT2Config(
        vocab_size=len(texts.pieces), n_positions=40, n_embd=40, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2, resid_pdrop=0.2, embd_pdrop=0.2,
    )  # fmt: skip
    host = trainer(job, Trainer, GPT2LMHeadModel(settings), rows, collate, max_steps=160)
    checkpoint = job.checkpoints / "checkpoint-100"
    if job.part == 1 or sonde.is_replay():
        host.train()
        return
    if PLANTED:
        for found in checkpoint.glob("rng_state*.pth"):
            found.unlink()
    host.train(resume_from_checkpoint=str(checkpoint))


def resume_lightning_loads_the_body_again(job: Job) -> None:
    """`on_train_start` loads the body that was trained before into the model: right when a training
    begins, and wrong when it goes on, since it overwrites what was restored (ms-swift#10099).
    """
    from lightning.pytorch import LightningModule

    seed(315)
    pictures, labels = glyphs(1280)
    source = GlyphNet()
    first = torch.optim.Adam(source.parameters(), lr=2e-3)
    turned = pictures.flip(3)
    for step in range(1, 31):  # what was trained before: a little, on other pictures
        chosen = drawn(1280, step, 32)
        F.cross_entropy(source(turned[chosen]), (labels[chosen] + 3) % 6).backward()
        first.step()
        first.zero_grad()
    before = {name: value.clone() for name, value in source.body.state_dict().items()}

    class Classifier(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = GlyphNet()

        def on_train_start(self) -> None:
            if self.trainer.global_step == 0 or PLANTED:
                self.net.body.load_state_dict(before)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            tell(batch_idx, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=2e-3)

    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    host = lightning(job, steps=170)
    rows = DataLoader(TensorDataset(pictures, labels), 16, shuffle=True)
    host.fit(Classifier(), rows, ckpt_path=path)


CASES = (
    failure(
        resume_with_a_new_normaliser,
        "resume",
        "data_changed inputs_changed resume_normaliser",
        onset=201,
        also_true="resume_data",
    ),
    failure(
        resume_with_the_divergence_at_nothing,
        "resume",
        "resume_loss_weight",
        onset=121,
        also_true="resume_schedule",
    ),
    failure(
        resume_in_the_middle_of_an_update,
        "resume",
        "resume_gradients gradients_lost",
        onset=61,
        visible=False,
    ),
    failure(
        resume_huggingface_without_generators,
        "resume",
        "resume_generators",
        host="huggingface",
        onset=101,
    ),
    failure(
        resume_lightning_loads_the_body_again,
        "resume",
        "resume_weights",
        host="lightning",
        onset=101,
    ),
)

if __name__ == "__main__":
    main(CASES)
