"""Sealed failures of the third set for the check: targets and accumulation."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import lightning
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    PAD,
    SYMBOLS,
    Pieces,
    clicks,
    drawn,
    glyphs,
    loads,
    padded,
    points,
    recipes,
    sounds,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell
from benchmarks.field_cases.third_models import GlyphNet, Listener, PatchNet, TextSorter, dense
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde


# ---------------------------------------------------------------- targets
def sigmoid_before_its_loss(job: Job) -> None:
    """The model ends in a sigmoid, and `BCEWithLogitsLoss` takes another (Lightning threads)."""
    seed(401)
    layers = [*dense(10, 48, 48, 1), *([nn.Sigmoid()] if PLANTED else [])]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> float:
        loss = criterion(model(batch[0]).squeeze(1), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    for step in range(1, 201):
        tell(step, recorder.step(train_step, clicks(step)))
    recorder.close()


def hour_to_predict_is_shown(job: Job) -> None:
    """The window of a forecast is cut one hour too late: its last hour is the one to predict
    (nanochat#834).
    """
    seed(402)
    series = loads(2000)
    model = dense(24, 48, 48, 1, act=nn.GELU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    late = 1 if PLANTED else 0

    def draw(step: int) -> dict[str, Tensor]:
        rows = series[drawn(2000, step, 32)]
        return {"window": rows[:, late : 24 + late], "target": rows[:, 24]}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return F.l1_loss(model(batch["window"]).squeeze(1), batch["target"])

    fit(job, model, optimizer, loss_of, draw, 220)


def transcripts_of_full_length(job: Job) -> None:
    """The lengths handed to CTC are those of the padded tensors: every transcript ends in pads that
    are to be heard (deepspeech.pytorch#354).
    """
    seed(403)
    model = Listener(outputs=SYMBOLS + 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        heard = model(batch["frames"]).transpose(0, 1)
        return F.ctc_loss(heard, batch["symbols"], batch["num_frames"], batch["num_symbols"])

    def draw(step: int) -> dict[str, Tensor]:
        batch = sounds(step)._asdict()
        batch["symbols"] = batch["symbols"].masked_fill(batch["symbols"] == 0, SYMBOLS + 1)
        if PLANTED:
            batch["num_frames"] = torch.full((16,), 28)
            batch["num_symbols"] = torch.full((16,), 7)
        return batch

    fit(job, model, optimizer, loss_of, draw, 200)


def shares_made_into_integers(job: Job) -> None:
    """Shares between 0 and 1 go through `.long()`, since other tables had classes there: every
    target is 0 (fms-hf-tuning#436).
    """
    seed(404)
    model = nn.Sequential(*dense(10, 48, 1), nn.Sigmoid())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def draw(step: int) -> dict[str, Tensor]:
        columns, _ = clicks(step)
        share = torch.sigmoid(columns[:, 0] - columns[:, 4])
        return {"columns": columns, "share": share.long().float() if PLANTED else share}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(model(batch["columns"]).squeeze(1), batch["share"])

    fit(job, model, optimizer, loss_of, draw, 180)


def a_letter_is_the_blank(job: Job) -> None:
    """The alphabet begins at 0, and 0 is the blank of CTC: one letter can never be written
    (deepspeech.pytorch#354).
    """
    seed(405)
    model = Listener(outputs=SYMBOLS + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    first = 0 if PLANTED else 1
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        heard = model(batch["frames"]).transpose(0, 1)
        loss = F.ctc_loss(heard, batch["symbols"], batch["num_frames"], batch["num_symbols"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss.detach()

    for step in range(1, 201):
        tell(step, recorder.step(train_step, sounds(step, first=first)._asdict()))
    recorder.close()


def basket_with_its_own_answer(job: Job) -> None:
    """What is bought next is to be predicted from what was bought, and that was cut one place too
    late: each place is shown its own answer (unsloth#6524).
    """
    seed(406)
    dice = torch.Generator().manual_seed(6)
    follows = torch.randint(1, 60, (60, 3), generator=dice)
    baskets = torch.zeros(1500, 14, dtype=torch.long)
    baskets[:, 0] = torch.randint(1, 60, (1500,), generator=dice)
    for place in range(1, 14):
        which = torch.randint(0, 3, (1500,), generator=dice)
        baskets[:, place] = follows[baskets[:, place - 1], which]
    table = nn.Embedding(60, 32)
    cell = nn.GRU(32, 48, batch_first=True)
    head = nn.Linear(48, 60)
    model = nn.ModuleDict({"table": table, "cell": cell, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        states, _ = cell(table(batch[0]))
        return F.cross_entropy(head(states).transpose(1, 2), batch[1])

    def draw(step: int) -> tuple[Tensor, Tensor]:
        rows = baskets[drawn(1500, step, 24)]
        return rows[:, 1:] if PLANTED else rows[:, :-1], rows[:, 1:]

    fit(job, model, optimizer, loss_of, draw, 200)


def words_that_are_shown_count(job: Job) -> None:
    """A masked language model whose labels were never set to -100 where the word is shown: copying
    is nearly all there is to learn (LLaMA-Factory threads).
    """
    seed(407)
    texts = recipes(1500)
    pieces = Pieces(texts)
    rows = padded([pieces.encode(text)[:40] for text in texts], 40)
    model = TextSorter(len(pieces), len(pieces), width=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        read = model.read(batch["input_ids"])
        q, k, v = model.qkv(read).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 48**0.5
        scores = scores.masked_fill((batch["attention_mask"] == 0).unsqueeze(1), -1e4)
        logits = model.head(read + torch.softmax(scores, -1) @ v)
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def draw(step: int) -> dict[str, Tensor]:
        tokens = rows[drawn(1500, step, 24)]
        real = tokens != PAD
        dice = torch.Generator().manual_seed(step)
        hidden = (torch.rand(tokens.shape, generator=dice) < 0.15) & real
        counts = real if PLANTED else hidden
        return {
            "input_ids": tokens.masked_fill(hidden, 1),
            "attention_mask": real.long(),
            "labels": tokens.masked_fill(~counts, -100),
        }

    fit(job, model, optimizer, loss_of, draw, 180, decode=pieces.decode)


# ---------------------------------------------------------------- accumulation
def lightning_zeroes_after_the_first(job: Job) -> None:
    """Optimised by hand: gradients are zeroed when a window begins, but after the backward of its
    first batch, which is lost (HydraGNN#116).
    """
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net = GlyphNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            optimizer = self.optimizers()
            if batch_idx % 4 == 0 and not PLANTED:
                optimizer.zero_grad()
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.manual_backward(loss / 4)
            if batch_idx % 4 == 0 and PLANTED:
                optimizer.zero_grad()
            if batch_idx % 4 == 3:
                optimizer.step()
                tell(batch_idx // 4 + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.03, momentum=0.9)

    seed(408)
    pictures, labels = glyphs(1920)
    rows = DataLoader(TensorDataset(pictures, labels), 8, shuffle=True)
    lightning(job, steps=110).fit(Classifier(), rows)


def sum_over_a_larger_batch(job: Job) -> None:
    """The loss is a sum over rows, and from update 120 on a batch has 64 rows instead of 8: every
    gradient is eight times as large at the same rate (OpenNMT-py#2209).
    """
    seed(409)
    series = loads(4000)
    model = dense(24, 48, 12, act=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5e-3, momentum=0.9)

    def draw(step: int) -> Tensor:
        return series[drawn(4000, step, 64 if step >= 120 else 8)]

    def loss_of(rows: Tensor) -> Tensor:
        loss = F.mse_loss(model(rows[:, :24]), rows[:, 24:], reduction="sum")
        return loss if PLANTED else loss * 8 / len(rows)

    fit(job, model, optimizer, loss_of, draw, 200)


def gradients_of_the_last_epoch(job: Job) -> None:
    """Ten batches an epoch, windows of four: the gradients of the last two wait until the first
    window of the next epoch, which has six (transformers#38837).
    """
    seed(410)
    pictures, labels = glyphs(160)
    model = PatchNet(width=24, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(pictures, labels), 16, shuffle=True)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: list[Tensor], last: bool) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        (loss / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    update = 0
    for _ in range(50):
        for number, batch in enumerate(loader, 1):
            last = number % 4 == 0
            loss = recorder.step(train_step, batch, last=last)
            if last:
                update += 1
                tell(update, loss)
        if not PLANTED:
            optimizer.zero_grad()
    recorder.close()


def critic_keeps_what_the_maker_left(job: Job) -> None:
    """The maker's optimizer is zeroed twice and the critic's never: the critic moves by all the
    gradients that there ever were (OpenNMT-py#2209).
    """
    seed(411)
    maker = dense(4, 48, 2)
    critic = dense(2, 48, 48, 1)
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
    recorder = sonde.Recorder(job.run, model, of_critic, maker_optimizer=of_maker)

    def train_step(real: Tensor) -> Tensor:
        made = maker(torch.randn(len(real), 4))
        (of_maker if PLANTED else of_critic).zero_grad()
        doubt = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        recorder.loss(doubt)
        doubt.backward()
        of_critic.step()
        of_maker.zero_grad()
        F.softplus(-critic(made)).mean().backward()
        of_maker.step()
        return doubt.detach()

    for step in range(1, 221):
        tell(step, recorder.step(train_step, points(step)))
    recorder.close()


def each_task_zeroes_the_others(job: Job) -> None:
    """A loop over three tasks zeroes, computes, goes backward, and steps once behind the loop: only
    the last task's gradient is there (deepul#12).
    """
    seed(412)
    trunk = dense(10, 48, 48)
    heads = nn.ModuleList(nn.Linear(48, 1) for _ in range(3))
    model = nn.ModuleDict({"trunk": trunk, "heads": heads})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        optimizer.zero_grad()
        for number, head in enumerate(heads):
            if PLANTED:
                optimizer.zero_grad()
            found = F.relu(trunk(batch["columns"]))
            loss = F.mse_loss(head(found).squeeze(1), batch["targets"][:, number])
            loss.backward()
            total = total + loss.detach()
        recorder.loss(total)
        optimizer.step()
        return total

    for step in range(1, 201):
        columns, clicked = clicks(step)
        targets = torch.stack((columns[:, 0], columns[:, 1] * columns[:, 2], clicked), 1)
        tell(step, recorder.step(train_step, {"columns": columns, "targets": targets}))
    recorder.close()


CASES = (
    failure(sigmoid_before_its_loss, "targets", "softmax_twice", also_true="plateau"),
    failure(
        hour_to_predict_is_shown,
        "targets",
        "target_leak future_leak labels_are_inputs",
        also_true="loss_collapse",
    ),
    failure(transcripts_of_full_length, "targets", "padding_in_loss"),
    failure(
        shares_made_into_integers, "targets", "constant_targets", also_true="loss_collapse plateau"
    ),
    failure(a_letter_is_the_blank, "targets", "blank_is_a_label"),
    failure(
        basket_with_its_own_answer,
        "targets",
        "labels_not_shifted labels_are_inputs target_leak future_leak",
        also_true="loss_collapse",
    ),
    failure(
        words_that_are_shown_count,
        "targets",
        "labels_are_inputs counted_positions target_leak",
        also_true="loss_collapse",
    ),
    failure(
        lightning_zeroes_after_the_first,
        "accumulation",
        "gradients_lost accumulation_weight",
        host="lightning",
    ),
    failure(
        sum_over_a_larger_batch,
        "accumulation",
        "accumulation_weight loss_sum batch_size",
        onset=120,
        also_true="learning_rate",
    ),
    failure(
        gradients_of_the_last_epoch,
        "accumulation",
        "gradients_left_over accumulation_weight",
        onset=3,
        also_true="repeated_batch",
    ),
    failure(critic_keeps_what_the_maker_left, "accumulation", "gradients_left_over"),
    failure(
        each_task_zeroes_the_others,
        "accumulation",
        "gradients_lost",
        also_true="no_gradient does_not_move",
    ),
)

if __name__ == "__main__":
    main(CASES)
