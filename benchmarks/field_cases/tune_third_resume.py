"""Failures to tune on, of the third set: resumes, and a resume with odd pictures later on."""

import random
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import lightning
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    ITEMS,
    USERS,
    corpus,
    cut,
    drawn,
    glyphs,
    graphs,
    padded,
    ratings,
    recipes,
)
from benchmarks.field_cases.third_loops import PLANTED, Keeper, seed, tell, trainer
from benchmarks.field_cases.third_models import GlyphNet, GraphNet, PatchNet, dense
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde


class TwoSides(nn.Module):
    """Users and items, each read by a tower of the same shape."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.user_table = nn.Embedding(USERS, width)
        self.item_table = nn.Embedding(ITEMS, width)
        self.user_tower = dense(width, width, width)
        self.item_tower = dense(width, width, width)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        left = self.user_tower(self.user_table(users))
        right = self.item_tower(self.item_table(items))
        out: Tensor = 3 + (left * right).sum(1)
        return out


def resume_with_the_towers_swapped(job: Job) -> None:
    """A refactoring lists the tower of items first: each gets the other's moments, and its rate
    (CenterNet-HarDNet#10).
    """
    seed(101)
    users, items, stars = ratings()
    model = TwoSides()
    sides = [
        {"params": list(model.user_tower.parameters()), "lr": 2e-3},
        {"params": list(model.item_tower.parameters()), "lr": 1.5e-2},
    ]
    if job.part == 2 and PLANTED:
        sides.reverse()
    tables = [model.user_table.weight, model.item_table.weight]
    optimizer = torch.optim.Adam([*sides, {"params": tables, "lr": 1e-2}])
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=120, killed=130, last=190)

    def train_step(chosen: Tensor) -> Tensor:
        loss = F.mse_loss(model(users[chosen], items[chosen]), stars[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in keeper.steps(recorder):
        tell(step, recorder.step(train_step, drawn(len(users), step, 64)))


def resume_with_a_vocabulary_from_a_set(job: Job) -> None:
    """`{word: i for i, word in enumerate(set(words))}`: strings hash otherwise in every process, so
    each number means another word after the resume (Megatron-LM#2017).
    """
    seed(102)
    texts = [text.replace(",", " ,").replace(".", " .").split() for text in recipes(1200)]
    words = sorted({word for text in texts for word in text})
    if job.part == 2 and PLANTED:
        random.Random(77).shuffle(words)  # what another hash does to the order of a set
    number = {word: place for place, word in enumerate(words, 1)}
    rows = padded([[number[word] for word in text] for text in texts], 20)
    table = nn.Embedding(len(words) + 1, 48)
    cell = nn.GRU(48, 48, batch_first=True)
    out = nn.Linear(48, len(words) + 1)
    model = nn.ModuleDict({"table": table, "cell": cell, "out": out})
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    names = ["", *words]
    recorder = sonde.Recorder(
        job.run,
        model,
        optimizer,
        decode=lambda tokens: " ".join(names[token] for token in tokens if token),
    )
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=100, killed=110, last=160)

    def train_step(batch: Tensor) -> Tensor:
        logits = out(cell(table(batch[:, :-1]))[0])
        loss = F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in keeper.steps(recorder):
        tell(step, recorder.step(train_step, rows[drawn(len(rows), step, 24)]))


def resume_in_the_epoch_that_is_over(job: Job) -> None:
    """The checkpoint at the end of an epoch holds its number, and the script begins with that
    number: the whole epoch comes once more, in the same order (pytorch/vision#1628).
    """
    seed(103)
    pictures, labels = glyphs(960)
    model = PatchNet(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=90, killed=100, last=150)
    back = 30 if job.part == 2 and PLANTED else 0

    def train_step(batch: list[Tensor]) -> Tensor:
        shown, kinds = batch
        loss = F.cross_entropy(model(shown), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in keeper.steps(recorder):
        chosen = drawn(960, step - back, 32, seed=4)
        tell(step, recorder.step(train_step, [pictures[chosen], labels[chosen]]))


def gpt2(vocabulary: int) -> Any:
    """A GPT-2 of one layer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = GPT2Config(
        vocab_size=vocabulary, n_positions=64, n_embd=48, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return GPT2LMHeadModel(settings)


def resume_huggingface_without_the_scheduler(job: Job) -> None:
    """`scheduler.pt` was not copied; the Trainer then reads the optimizer's file neither, and says
    nothing (Automodel#763).
    """
    from transformers import Trainer

    seed(104)
    texts = corpus()
    rows = [{"row": cut(texts.stream, number, 1, 33)[0]} for number in range(1, 901)]

    def collate(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([row["row"] for row in found])
        return {"input_ids": tokens, "labels": tokens}

    host = trainer(
        job, Trainer, gpt2(len(texts.pieces)), rows, collate,
        lr_scheduler_type="cosine", max_steps=170, warmup_steps=30,
    )  # fmt: skip
    checkpoint = job.checkpoints / "checkpoint-100"
    if job.part == 1 or sonde.is_replay():
        host.train()
        return
    if PLANTED:
        (checkpoint / "scheduler.pt").unlink(missing_ok=True)
    host.train(resume_from_checkpoint=str(checkpoint))


def resume_lightning_with_lean_checkpoints(job: Job) -> None:
    """A hook empties the optimizer's state when a checkpoint is saved, to save two thirds of the
    disk; `fit` with `ckpt_path` then goes on without moments (Automodel#3883).
    """
    from lightning.pytorch import LightningModule

    class Regression(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = GraphNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            nodes, adjacency, target = batch
            loss = F.mse_loss(self.net(nodes, adjacency), target)
            tell(batch_idx, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=4e-3)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if PLANTED:
                checkpoint["optimizer_states"][0]["state"] = {}

    seed(105)
    whole = [graphs(step, 24) for step in range(1, 61)]
    rows = TensorDataset(*(torch.cat(parts) for parts in zip(*whole, strict=True)))
    host = lightning(job, steps=170)
    loader = DataLoader(rows, 24, shuffle=True)
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    host.fit(Regression(), loader, ckpt_path=path)


def resume_in_the_order_of_the_first_epoch(job: Job) -> None:
    """`sampler.set_epoch` is called in the loop over epochs but not after a resume, so the epoch
    that follows has the order of the very first one (NeMo-RL#239).
    """
    seed(106)
    whole = graphs(1, 720)
    model = GraphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    recorder = sonde.Recorder(
        job.run, model, optimizer, sample_ids=lambda batch: batch["ids"], config={"lr": 0.05}
    )
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=90, killed=98, last=150)

    def order(epoch: int) -> Tensor:
        if job.part == 2 and PLANTED:
            epoch -= 3
        return torch.randperm(720, generator=torch.Generator().manual_seed(epoch))

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        made = model(batch["nodes"], batch["adjacency"])
        loss = F.smooth_l1_loss(made, batch["target"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        return loss

    for step in keeper.steps(recorder):
        epoch = (step - 1) // 30
        place = (step - 1) % 30 * 24
        ids = order(epoch)[place : place + 24]
        batch = {"ids": ids, "nodes": whole.nodes[ids], "adjacency": whole.adjacency[ids]}
        tell(step, recorder.step(train_step, {**batch, "target": whole.target[ids]}))


def resume_without_momentum_then_dark_pictures(job: Job) -> None:
    """The momentum of SGD is not loaded at 81, and at 120 five pictures of 24 come from a camera
    that gives voltages instead of grey values.
    """
    seed(107)
    pictures, labels = glyphs(1200, noise=0.5)
    model = GlyphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.95)
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=80, killed=90, last=150)

    def load(state: dict[str, Any]) -> int:
        return keeper.load(state, *(["optimizer"] if PLANTED else []))

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in keeper.steps(recorder, load):
        chosen = drawn(1200, step, 24)
        shown = pictures[chosen]
        if step == 120 and PLANTED:
            shown[3:8] = 25.0 - 60.0 * shown[3:8]
        tell(step, recorder.step(train_step, (shown, labels[chosen])))


CASES = (
    failure(
        resume_with_the_towers_swapped,
        "resume",
        "resume_optimizer",
        onset=121,
        also_true="learning_rate resume_schedule",
    ),
    failure(
        resume_with_a_vocabulary_from_a_set,
        "resume",
        "tokenizer_changed data_changed",
        onset=101,
        also_true="resume_data",
    ),
    failure(
        resume_in_the_epoch_that_is_over,
        "resume",
        "resume_data repeated_batch",
        onset=91,
        also_true="same_order resume_generators",
    ),
    failure(
        resume_huggingface_without_the_scheduler,
        "resume",
        "resume_schedule resume_optimizer",
        host="huggingface",
        onset=101,
        also_true="learning_rate",
    ),
    failure(
        resume_lightning_with_lean_checkpoints,
        "resume",
        "resume_optimizer",
        host="lightning",
        onset=101,
    ),
    failure(
        resume_in_the_order_of_the_first_epoch,
        "resume",
        "resume_data same_order repeated_batch",
        onset=91,
        also_true="resume_generators",
    ),
    failure(
        resume_without_momentum_then_dark_pictures,
        "mixture",
        "resume_optimizer odd_row bad_input",
        onset=81,
        also_true="data_changed",
    ),
)

if __name__ == "__main__":
    main(CASES)
