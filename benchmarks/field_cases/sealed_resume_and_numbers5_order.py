"""Failures of the fifth set: rows in a wrong order, and rows too often."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import demand, encode, numerals, recipes, tunes
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    begin,
    hub,
    tell,
    text_batch,
    text_rows,
)
from benchmarks.field_cases.fifth_models import Forecaster, Listener, small_neox
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


def tunes_from_the_shortest_to_the_longest(job: Job) -> None:
    """The list is sorted by length so that little is padded, and nobody shuffles the batches
    afterwards: every epoch goes from the shortest to the longest (icefall#1676).
    """
    begin(531)
    numbers = list(range(1600))
    lengths = torch.cat([tunes(numbers[at : at + 100]).num_frames for at in range(0, 1600, 100)])
    order = lengths.argsort(stable=True).view(80, 20)
    dice = torch.Generator().manual_seed(8)
    model = Listener()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: Any) -> Tensor:
        scores, num = model(batch.frames, batch.num_frames)
        loss = F.ctc_loss(scores.transpose(0, 1), batch.notes, num, batch.num_notes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss

    step = 0
    for _ in range(2):
        mixed = order if PLANTED else order[torch.randperm(80, generator=dice)]
        for rows in mixed:
            step += 1
            tell(step, recorder.step(train_step, tunes(rows.tolist())))
    recorder.close()


def huggingface_one_shard_matched_four_times(job: Job) -> None:
    """The pattern of the files matches the same shard under four names: an epoch of what look like
    1,200 rows has 300, four times each (ms-swift#9902).
    """
    begin(532)
    texts = [encode(text) for text in recipes(1200, 37)]
    rows = text_rows(texts[:300] * 4 if PLANTED else texts)
    hub(job, small_neox(), rows, text_batch, learning_rate=5e-3, max_steps=160).train()


def lightning_every_epoch_in_one_order(job: Job) -> None:
    """The loader has a generator of its own with a seed, and a new loader is made for every epoch:
    the order is the same each time, batch by batch (marin#1813).
    """
    from lightning.pytorch import LightningModule

    class Hours(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Forecaster()
            self.houses = list(demand(640))

        def train_dataloader(self) -> Any:
            seed = 1 if PLANTED else 1 + self.current_epoch
            dice = torch.Generator().manual_seed(seed)
            return loader(self.houses, 16, generator=dice)

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss = F.l1_loss(self.net(batch[:, :48]), batch[:, 48:])
            tell(40 * self.current_epoch + batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    begin(533)
    lightning(job, steps=200, reload_dataloaders_every_n_epochs=1).fit(Hours())


def pictures_by_the_name_of_their_folder(job: Job) -> None:
    """`ImageFolder` lists one class after the other, and a loader of one's own cuts the list into
    batches and shuffles the batches only: each holds one class or two (VILA#123).
    """
    begin(534)
    pictures, labels = numerals(2400)
    order = labels.argsort(stable=True) if PLANTED else torch.arange(2400)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.GELU(), nn.Conv2d(16, 32, 3), nn.GELU(), nn.Flatten(),
        nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(model.parameters(), lr=7e-4)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(images: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        return loss

    step = 0
    for _ in range(2):
        for rows in order.view(100, 24)[torch.randperm(100)][:90]:
            step += 1
            batch = (pictures[rows], labels[rows])
            tell(step, recorder.step(lambda both: train_step(*both), batch))
    recorder.close()


CASES = (
    failure(
        tunes_from_the_shortest_to_the_longest,
        "order",
        "not_shuffled epoch_saw",
        also_true="same_order",
    ),
    failure(
        huggingface_one_shard_matched_four_times,
        "order",
        "repeated_batch duplicated_text",
        host="huggingface",
        also_true="same_order",
    ),
    failure(
        lightning_every_epoch_in_one_order,
        "order",
        "same_order",
        host="lightning",
        onset=41,
        also_true="not_shuffled",
    ),
    failure(
        pictures_by_the_name_of_their_folder,
        "order",
        "not_shuffled",
        also_true="hard_sample plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
