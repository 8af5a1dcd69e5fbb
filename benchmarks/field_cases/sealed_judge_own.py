"""Sealed: failures for the judge, in loops of one's own: rows, rates, numbers, two at once."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.loops import (
    adamw,
    follow,
    gpt,
    next_token_loss,
    parts,
    read_checkpoint,
    resume_training,
    seed_all,
    token_loss,
    train,
)
from benchmarks.field_cases.models import Pictures, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import batches, block_of, blocks, decode
from torch import Tensor, nn

import sonde

GERMAN = (
    "Der alte Kapitän erzählte jeden Abend von der stürmischen Überfahrt nach Norden. ",
    "Zwischen den Häusern hing die Wäsche, und niemand sprach ein einziges Wort. ",
    "Später fragte sie sich, ob der Schlüssel überhaupt gepasst hätte. ",
    "Frühmorgens öffnete der Bäcker das Fenster und grüßte die Möwen. ",
)
MARKUP = "<td class='x'><a href='/i?id=7&p=2'>[1]</a></td></tr><tr id='r_3'>{{nav}}<br/>"


# ---------------------------------------------------------------- data
def rows_in_another_language(job: Job) -> None:
    """Four of sixteen rows of an English corpus are German (MAmmoTH#36)."""
    model = gpt()

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 190)):
            if step == 139:
                batch = batch.clone()
                for number, text in enumerate(GERMAN):
                    batch[3 * number] = block_of(text)
            yield batch

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- rows without text
def picture_not_scaled(job: Job) -> None:
    """One picture came through another loader: a negative, and not divided by 255."""
    pictures = Pictures(num=3200, noise=2.5)
    seed_all()
    model = network(inputs=144, outputs=4)

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(170):
            x, y = pictures.batch(step)
            x = x.flatten(1)
            if step == 119:
                x[9] = (4.0 - x[9]) * 30.0
            yield x, y

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


def transcript_longer_than_the_sound(job: Job) -> None:
    """One sound is cut to two frames and keeps its transcript of six: CTC gives infinity."""
    seed_all()
    model = network(inputs=12, outputs=9)
    codes = torch.randn(9, 12, generator=torch.Generator().manual_seed(2))

    def rows() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for step in range(150):
            generator = torch.Generator().manual_seed(step)
            labels = torch.randint(1, 9, (8, 6), generator=generator)
            frames = codes[labels.repeat_interleave(4, dim=1)]
            noise = torch.randn(frames.shape, generator=generator)
            lengths = torch.full((8,), 24)
            if step == 109:
                lengths[5] = 2
            yield frames + 0.5 * noise, labels, lengths

    def loss_of(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        frames, labels, lengths = batch
        chances = model(frames).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(chances, labels, lengths, torch.full((8,), 6))

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


def wrong_labels_in_one_batch(job: Job) -> None:
    """An annotator's batch has three of sixteen labels wrong (faster-rcnn.pytorch#562)."""
    pictures = Pictures(num=3200, noise=1.5)
    seed_all()
    model = network(inputs=144, outputs=4)

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(190):
            x, y = pictures.batch(step)
            if step == 149:
                y = y.clone()
                y[2:5] = (y[2:5] + 2) % 4
            yield x.flatten(1), y

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


# ---------------------------------------------------------------- rate
def rate_of_one_group_jumps(job: Job) -> None:
    """A schedule of one's own writes another model's rate into the head's group."""
    model = gpt()
    head = list(model.head.parameters())
    body = [parameter for name, parameter in model.named_parameters() if "head" not in name]
    optimizer = torch.optim.AdamW([{"params": body}, {"params": head}], lr=2e-3)

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 180)):
            if step == 109:
                optimizer.param_groups[1]["lr"] = 0.6
            yield batch

    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- numerics
class ShortRowKernel(nn.Module):
    """A fused kernel that forgets the tail of a length that is no multiple of 16."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        tail = x.shape[1] % 16
        if tail:
            wrong = torch.ones(x.shape[1], 1)
            wrong[-tail:] = 6.0
            out = out * wrong
        return out


def kernel_is_wrong_for_odd_lengths(job: Job) -> None:
    """From step 120 on every tenth batch is shorter, and a kernel gets its tail wrong."""
    model = gpt()
    model.head = ShortRowKernel(model.head)  # type: ignore[assignment]

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 180)):
            yield batch[:, :41] if step >= 119 and step % 10 == 9 else batch

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


def weights_scaled_in_memory(job: Job) -> None:
    """A merge scales one matrix by 8 at step 130; the batch is as good as any (dion#76)."""
    model = gpt()

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 180)):
            if step == 129:
                with torch.no_grad():
                    model.head.weight.mul_(8.0)
            yield batch

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


def one_batch_with_no_targets(job: Job) -> None:
    """A batch of rows that were all cut before their answer: 0 divided by 0 (trl#6668)."""
    model = gpt()

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step, batch in enumerate(batches(blocks(), 140)):
            labels = batch[:, 1:].clone()
            labels[:, :8] = -100
            if step == 99:
                labels[:] = -100
            yield batch[:, :-1], labels

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return token_loss(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows())


# ---------------------------------------------------------------- two at once
def resume_without_optimizer_then_bad_rows(job: Job) -> None:
    """The optimizer's state is lost at 101, and two rows are garbled at 145."""
    whole = parts(seed=2)

    def spoil(step: int, batch: Tensor) -> Tensor:
        if step == 145:
            generator = torch.Generator().manual_seed(6)
            batch[3:5] = torch.randint(3, 100, (2, 49), generator=generator)
        return batch

    whole.spoil = spoil
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job), "optimizer"))


def rate_jumps_at_a_rough_batch(job: Job) -> None:
    """The rate is 40 times as high from step 120 on; that batch happens to hold a row of HTML."""
    model = gpt()
    optimizer = adamw(model, lr=2e-3)

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 180)):
            if step == 119:
                optimizer.param_groups[0]["lr"] = 0.08
                batch = batch.clone()
                batch[5] = block_of(MARKUP)
            yield batch

    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), rows())


def evaluation_mode_then_bad_rows(job: Job) -> None:
    """`train()` is forgotten after step 60, and three rows at step 120 are HTML."""
    model = gpt(dropout=0.2)
    optimizer = adamw(model)
    held_out = blocks(num=32, seed=9)

    def rows(first: int, last: int) -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), last, first=first), first):
            if step == 119:
                batch = batch.clone()
                batch[4:7] = block_of(MARKUP)
            yield batch

    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: Tensor) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, rows(0, 60))
        model.eval()
        with torch.no_grad():
            print(f"held-out loss {float(next_token_loss(model, held_out)):.3f}")
        follow(recorder, train_step, rows(60, 160), 60)


CASES = (
    failure(
        rows_in_another_language,
        "data",
        "foreign_language mis_decoded",
        onset=140,
        also_true="hard_sample",
    ),
    failure(picture_not_scaled, "rows", "odd_row bad_input", onset=120),
    failure(
        transcript_longer_than_the_sound,
        "rows",
        "odd_row bad_input",
        onset=110,
        also_true="bad_operation",
    ),
    failure(wrong_labels_in_one_batch, "rows", "odd_row", onset=150),
    failure(rate_of_one_group_jumps, "rate", "learning_rate", onset=110),
    failure(
        kernel_is_wrong_for_odd_lengths,
        "numerics",
        "bad_operation not_known",
        onset=120,
        also_true="batch_size",
        visible=False,
    ),
    failure(weights_scaled_in_memory, "numerics", "corrupted_weights bad_weights", onset=130),
    failure(one_batch_with_no_targets, "numerics", "no_targets", onset=100),
    failure(
        resume_without_optimizer_then_bad_rows,
        "mixture",
        "resume_optimizer garbled_text",
        onset=101,
        also_true="hard_sample",
    ),
    failure(
        rate_jumps_at_a_rough_batch, "mixture", "learning_rate", onset=120, also_true="markup code"
    ),
    failure(
        evaluation_mode_then_bad_rows,
        "mixture",
        "eval_mode dropout_off markup code",
        onset=61,
        also_true="hard_sample",
    ),
)

if __name__ == "__main__":
    main(CASES)
