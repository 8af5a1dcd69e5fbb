"""Sealed, second set: texts, rows, targets that break midway, two failures at once."""

import base64
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    NUM_WORDS,
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    reports,
    spoiled_at,
    stripes,
    to_bytes,
    waves,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import Session, begin, nano, over, say
from benchmarks.field_cases.second_models import NanoLM, StripeNet, TwoTowers, WordLSTM
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import sonde


# ---------------------------------------------------------------- texts
def rows_of_white_space(job: Job) -> None:
    """Five of sixteen rows are what is left of pages whose text was taken out: line breaks and
    blanks (LlamaFactory#5247).
    """
    begin(151)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def spoil(rows: Tensor) -> Tensor:
        rows[3:8] = torch.tensor(to_bytes("\n\n   \n  \t\n     \n" * 6)[: rows.shape[1]])
        return rows

    draw = spoiled_at(170, lambda step: window(stream, step, size=16, block=48), spoil)
    nano(job, model, optimizer, draw, 205, decode=from_bytes)


def rows_that_run_backwards(job: Job) -> None:
    """Six of sixteen rows were extracted right to left: every letter in reverse order
    (MAmmoTH#36).
    """
    begin(152)
    stream = byte_stream()
    model = NanoLM(width=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def spoil(rows: Tensor) -> Tensor:
        rows[::3] = rows[::3].flip(1)
        return rows

    draw = spoiled_at(200, lambda step: window(stream, step, size=16, block=60), spoil)
    nano(job, model, optimizer, draw, 235, decode=from_bytes)


def attachments_in_base64(job: Job) -> None:
    """Three of twelve rows of an archive of mails are attachments in base64 (LlamaFactory#5247)."""
    begin(153)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))

    def spoil(rows: Tensor) -> Tensor:
        dice = random.Random(8)
        for number in (2, 5, 9):
            packed = base64.b64encode(dice.randbytes(90)).decode()
            rows[number] = torch.tensor(to_bytes(packed)[: rows.shape[1]])
        return rows

    draw = spoiled_at(150, lambda step: window(stream, step, size=12, block=56), spoil)
    nano(job, model, optimizer, draw, 185, decode=from_bytes)


# ---------------------------------------------------------------- targets that break midway
def another_tokenizer_from_now_on(job: Job) -> None:
    """From update 180 on the shards were made with another tokenizer: every number means another
    word (axolotl#1806).
    """
    begin(154)
    rows = word_rows(2400)
    swapped = torch.arange(NUM_WORDS)
    swapped[4:] = 4 + torch.randperm(NUM_WORDS - 4, generator=torch.Generator().manual_seed(9))
    model = WordLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)

    def batches() -> Iterator[Tensor]:
        for step in range(230):
            batch = rows[epoch_order(len(rows), step, 16)]
            yield swapped[batch] if step >= 179 else batch

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


def answers_are_cut_off(job: Job) -> None:
    """From update 160 on rows are cut in half, and no answer is left (Megatron-LM#2017)."""
    begin(155)
    texts = reports(1600)
    model = NanoLM(dropout=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def drawn(step: int) -> tuple[Tensor, Tensor]:
        length = 61 if step < 159 else 24
        tokens = torch.zeros(6, length, dtype=torch.long)
        labels = torch.full((6, length), -1)
        for row, number in enumerate(epoch_order(len(texts), step, 6).tolist()):
            whole = to_bytes("Report: " + texts[number])[:length]
            tokens[row, : len(whole)] = torch.tensor(whole)
            labels[row, 24 : len(whole)] = tokens[row, 24 : len(whole)]
        return tokens[:, :-1], labels[:, 1:]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = model(batch[0], batch[1])[1]
        return loss

    over(job, model, optimizer, map(drawn, range(200)), loss_of, clip=1.0, decode=from_bytes)


# ---------------------------------------------------------------- rows without text
def pictures_no_longer_scaled(job: Job) -> None:
    """From update 210 on a new loader hands out pictures from 0 to 255 (DEVIANT#2)."""
    begin(156)
    pictures, labels = stripes(3200, noise=2.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 48), nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(250):
            chosen = epoch_order(len(labels), step, 32)
            shown = pictures[chosen]
            yield {"image": shown * 60.0 + 128.0 if step >= 209 else shown, "label": labels[chosen]}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"])

    over(job, model, optimizer, batches(), loss_of)


def lightning_sensor_that_failed(job: Job) -> None:
    """One series of a batch has no numbers where its sensor was off (lerobot#4178)."""
    begin(157)
    series = waves(1600)
    model = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 4))

    def spoil(batch: Tensor) -> Tensor:
        batch[11, 4:7] = float("nan")
        return batch

    draw = spoiled_at(150, lambda step: series[epoch_order(1600, step, 24)], spoil)
    batches = [draw(step) for step in range(190)]

    def loss_of(network: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(network(batch[:, :20]), batch[:, 20:])

    module = lightning_module(model, loss_of, lr=2e-3)
    lightning(job, steps=190).fit(module, loader(batches, None, shuffle=False))


def captions_of_other_pictures(job: Job) -> None:
    """Eight of thirty-two pairs of a batch have another's second half (faster-rcnn.pytorch#562)."""
    begin(158)
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(210):
            columns, _ = houses(step, 32)
            noise = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
            right = columns.roll(3, 1) + 0.2 * noise
            if step == 169:
                right[8:16] = right[8:16].roll(3, 0)
            yield {"left": columns, "right": right}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["left"], batch["right"])
        return F.cross_entropy(scores, torch.arange(len(scores)))

    over(job, model, optimizer, batches(), loss_of)


# ---------------------------------------------------------------- two failures at once
def evaluation_mode_then_bright_pictures(job: Job) -> None:
    """`train()` is forgotten after the evaluation at step 80, and six pictures at 160 are negatives
    and ten times too bright.
    """
    begin(159)
    pictures, labels = stripes(noise=1.5)
    model = StripeNet(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = recorder.loss(F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 201):
        chosen = epoch_order(len(labels), step, 24)
        shown = pictures[chosen]
        if step == 160:
            shown[6:12] *= -10.0
        say(step, recorder.step(train_step, (shown, labels[chosen])))
        if step == 80:
            model.eval()
            with torch.no_grad():
                right = (model(pictures[:200]).argmax(1) == labels[:200]).float().mean()
            print(f"{float(right):.3f} right")
    recorder.close()


def resume_at_a_high_rate_then_noise(job: Job) -> None:
    """After the resume at 90 the rate is that of the command line, 25 times too high, and three of
    twelve rows at 140 are noise.
    """
    begin(160)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = StepLR(optimizer, step_size=40, gamma=0.2)

    def spoil(rows: Tensor) -> Tensor:
        dice = torch.Generator().manual_seed(2)
        rows[4:7] = torch.randint(33, 127, (3, rows.shape[1]), generator=dice)
        return rows

    draw = spoiled_at(140, lambda step: window(stream, step, size=12, block=40), spoil)
    session = Session(model, optimizer, draw, lambda rows: model(rows[:, :-1], rows[:, 1:])[1])
    session.named = {"scheduler": scheduler}
    session.decode = from_bytes

    def load(state: dict[str, Any]) -> int:
        step = session.load(state)
        optimizer.param_groups[0]["lr"] = 5e-3
        return step

    session.run(job, load)


CASES = (
    failure(rows_of_white_space, "data", "empty repetition", onset=170, also_true="hard_sample"),
    failure(
        rows_that_run_backwards,
        "data",
        "garbled_text reversed_text",
        onset=200,
        also_true="hard_sample foreign_language",
    ),
    failure(attachments_in_base64, "data", "garbled_text", onset=150, also_true="hard_sample code"),
    failure(
        another_tokenizer_from_now_on,
        "targets",
        "tokenizer_changed garbled_text data_changed",
        onset=180,
        also_true="hard_sample",
    ),
    failure(
        answers_are_cut_off,
        "targets",
        "no_targets truncated_target",
        onset=160,
    ),
    failure(
        pictures_no_longer_scaled,
        "rows",
        "odd_row bad_input inputs_changed",
        onset=210,
    ),
    failure(lightning_sensor_that_failed, "rows", "bad_input odd_row", host="lightning", onset=150),
    failure(captions_of_other_pictures, "rows", "odd_row mismatched_pair", onset=170),
    failure(
        evaluation_mode_then_bright_pictures,
        "mixture",
        "eval_mode dropout_off odd_row bad_input",
        onset=81,
    ),
    failure(
        resume_at_a_high_rate_then_noise,
        "mixture",
        "resume_schedule learning_rate garbled_text",
        onset=91,
        also_true="hard_sample",
    ),
)

if __name__ == "__main__":
    main(CASES)
