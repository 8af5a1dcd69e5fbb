"""Sealed: loops of one's own that are wrong from the first step, or soon after it."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.loops import (
    adamw,
    follow,
    gpt,
    next_token_loss,
    seed_all,
    token_loss,
    train,
)
from benchmarks.field_cases.models import ConvNet, Pictures, Translator, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import (
    PAD,
    batch_at,
    batches,
    blocks,
    decode,
    encode,
    padded,
    sentences,
)
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- targets
def labels_three_places_on(job: Job) -> None:
    """Inputs lost three special tokens when they were cut, labels did not (axolotl#2089)."""
    model = gpt()

    def loss_of(batch: Tensor) -> Tensor:
        return token_loss(model(batch[:, :-4]), batch[:, 4:])

    train(job, model, adamw(model), loss_of, batches(blocks(length=52), 160))


def only_the_prompt_counts(job: Job) -> None:
    """The mask is the wrong way round: the question is learnt, the answer is not."""
    model = gpt()
    rows = blocks(length=65)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return token_loss(model(batch["input_ids"]), batch["labels"])

    def asked() -> Iterator[dict[str, Tensor]]:
        for batch in batches(rows, 140):
            is_answer = torch.arange(64) >= 24
            labels = batch[:, 1:].masked_fill(is_answer, -100)
            yield {
                "input_ids": batch[:, :-1],
                "labels": labels,
                "completion_mask": is_answer.long().expand(len(batch), -1),
            }

    train(job, model, adamw(model), loss_of, asked())


def pictures_and_labels_shuffled_apart(job: Job) -> None:
    """The pictures are shuffled and the labels are not."""
    pictures = Pictures()
    shuffled = torch.randperm(len(pictures.labels), generator=torch.Generator().manual_seed(8))
    pictures.pixels = pictures.pixels[shuffled]
    seed_all()
    model = ConvNet()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    every = (pictures.batch(step) for step in range(200))
    train(job, model, adamw(model), loss_of, every, has_text=False)


def softmax_before_cross_entropy(job: Job) -> None:
    """The model ends in a softmax, and the loss takes another."""
    pictures = Pictures(num_classes=4)
    seed_all()
    model = nn.Sequential(ConvNet(), nn.Softmax(dim=1))

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    every = (pictures.batch(step) for step in range(200))
    train(job, model, adamw(model), loss_of, every, has_text=False)


# ---------------------------------------------------------------- accumulation
def accumulating(
    job: Job, micro_loss: Any, *, zero_each: bool = False, never_zero: bool = False
) -> None:
    """Four micro-batches to an update; `micro_loss` says what backward is called on."""
    model = gpt()
    optimizer = adamw(model)
    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: Tensor, last: bool) -> Tensor:
            if zero_each:
                optimizer.zero_grad()
            loss = recorder.loss(next_token_loss(model, batch))
            micro_loss(loss).backward()
            if last:
                optimizer.step()
                if not never_zero:
                    optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches(blocks(), 400, size=6), num_micro=4)


def accumulated_loss_divided_twice(job: Job) -> None:
    """The loss is divided by the number of micro-batches, and by it again (OpenNMT-py#2209)."""
    accumulating(job, lambda loss: loss / 4 / 4)


def gradients_zeroed_each_micro_batch(job: Job) -> None:
    """`zero_grad` stands at the top of the loop: only the last micro-batch counts."""
    accumulating(job, lambda loss: loss / 4, zero_each=True)


def gradients_never_zeroed(job: Job) -> None:
    """`zero_grad` went missing: every gradient since the start is still there."""
    accumulating(job, lambda loss: loss / 4, never_zero=True)


# ---------------------------------------------------------------- masks
def mask_is_one_place_off(job: Job) -> None:
    """`triu(diagonal=2)`: every position sees the token it is to predict (flash-attention#2381)."""
    model = gpt()

    def loss_of(batch: Tensor) -> Tensor:
        seen = ~torch.ones(48, 48).triu(diagonal=2).bool()
        return token_loss(model(batch[:, :-1], mask=seen), batch[:, 1:])

    train(job, model, adamw(model), loss_of, batches(blocks(), 160))


def padding_is_attended_to(job: Job) -> None:
    """An encoder reads padding on the left as if it were text: the mask is not passed on."""
    seed_all()
    model = gpt(causal=False)
    rows = padded(sentences(1200), length=64).flip(1)
    words = padded([text.split()[0] for text in sentences(1200)], length=64)
    labels = words[:, 0]

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"])
        return F.cross_entropy(logits.mean(1), batch["labels"])

    def every() -> Iterator[dict[str, Tensor]]:
        numbers = torch.arange(len(rows)).unsqueeze(1)
        for step in range(140):
            chosen = batch_at(numbers, step).squeeze(1)
            tokens = rows[chosen]
            yield {
                "input_ids": tokens,
                "attention_mask": (tokens != PAD).long(),
                "labels": labels[chosen],
            }

    train(job, model, adamw(model), loss_of, every())


class MixesRows(nn.Module):
    """Batch and length are mixed up by a `view` where a `transpose` was meant."""

    def __init__(self) -> None:
        super().__init__()
        self.body = gpt(num_layers=1)
        self.mixer = nn.GRU(48, 48)  # reads along the first axis, which should be the length
        self.head = nn.Linear(48, self.body.head.out_features)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body.tokens(x)
        size, length, width = hidden.shape
        mixed, _ = self.mixer(hidden.view(length, size, width))
        logits: Tensor = self.head(mixed.reshape(size, length, width) + hidden)
        return logits


def rows_leak_into_each_other(job: Job) -> None:
    """A row's losses depend on other rows of the batch (maxtext#4476)."""
    seed_all()
    model = MixesRows()
    every = batches(blocks(length=33), 140)
    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), every)


# ---------------------------------------------------------------- precision
def updates_too_small_for_bfloat16(job: Job) -> None:
    """Weights in bfloat16 and a rate of 1e-6: most updates round to nothing (torchtune#2254)."""
    model = gpt(dropout=0.0).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)

    def loss_of(batch: Tensor) -> Tensor:
        return token_loss(model(batch[:, :-1]).float(), batch[:, 1:])

    train(job, model, optimizer, loss_of, batches(blocks(length=33), 120, size=8))


# ---------------------------------------------------------------- order
def every_row_twice_in_a_batch(job: Job) -> None:
    """The sampler of two ranks is used on one: each row stands in the batch twice."""
    model = gpt()

    def rows() -> Iterator[Tensor]:
        for batch in batches(blocks(), 160, size=8):
            yield torch.cat((batch, batch))

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


def rows_sorted_by_length(job: Job) -> None:
    """The corpus was sorted by length for speed, and is read in that order (NeMo-RL#239)."""
    model = gpt()
    texts = sorted(sentences(2400), key=len)

    def rows() -> Iterator[Tensor]:
        for first in range(0, 2400, 16):
            found = texts[first : first + 16]
            yield padded(found, length=max(len(encode(text)) for text in found) + 1)

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- connection
class Detached(nn.Module):
    """The features are detached for a picture of them, and go on detached."""

    def __init__(self) -> None:
        super().__init__()
        self.features = network(outputs=32)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).detach()
        result: Tensor = self.head(features)
        return result


def features_are_detached(job: Job) -> None:
    """Half of the model gets no gradient."""
    from benchmarks.field_cases.models import measurements

    seed_all()
    model = Detached()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    every = (measurements(step) for step in range(160))
    train(job, model, adamw(model), loss_of, every, has_text=False)


def evaluation_mode_from_the_start(job: Job) -> None:
    """A model that was loaded for inference is trained in evaluation mode: dropout is off."""
    model = gpt(dropout=0.3)
    model.eval()
    every = batches(blocks(num=400), 160)
    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), every)


def encoder_not_in_the_optimizer(job: Job) -> None:
    """The optimizer was given the decoder's parameters alone (VeOmni#118)."""
    seed_all()
    model = Translator()
    chosen = [*model.writer.parameters(), *model.head.parameters()]
    optimizer = torch.optim.AdamW(chosen, lr=3e-3)
    texts = sentences(1200)
    sources = padded(texts, length=48)
    targets = padded([text[::-1] for text in texts], length=48)
    both = torch.cat((sources, targets), dim=1)

    def loss_of(batch: Tensor) -> Tensor:
        source = batch[:, :48]
        target = batch[:, 48:]
        labels = target[:, 1:].masked_fill(target[:, 1:] == PAD, -100)
        return token_loss(model(source, target[:, :-1]), labels)

    train(job, model, optimizer, loss_of, batches(both, 120))


CASES = (
    failure(labels_three_places_on, "targets", "labels_shifted_twice labels_misaligned"),
    failure(only_the_prompt_counts, "targets", "prompt_in_loss"),
    failure(
        pictures_and_labels_shuffled_apart,
        "targets",
        "labels_unrelated plateau",
        also_true="hard_sample",
        visible=False,
    ),
    failure(softmax_before_cross_entropy, "targets", "softmax_twice plateau stuck"),
    failure(accumulated_loss_divided_twice, "accumulation", "accumulation_weight"),
    failure(
        gradients_zeroed_each_micro_batch, "accumulation", "accumulation_weight gradients_lost"
    ),
    failure(gradients_never_zeroed, "accumulation", "gradients_left_over accumulation_weight"),
    failure(mask_is_one_place_off, "masks", "future_leak", also_true="loss_collapse"),
    failure(padding_is_attended_to, "masks", "padding_leak"),
    failure(rows_leak_into_each_other, "masks", "row_leak"),
    failure(
        updates_too_small_for_bfloat16,
        "precision",
        "half_precision_updates does_not_move",
        also_true="plateau stuck learning_rate",
    ),
    failure(every_row_twice_in_a_batch, "order", "repeated_rows repeated_batch duplicated_text"),
    failure(rows_sorted_by_length, "order", "not_shuffled"),
    failure(features_are_detached, "connection", "no_gradient", also_true="does_not_move"),
    failure(evaluation_mode_from_the_start, "connection", "eval_mode dropout_off"),
    failure(
        encoder_not_in_the_optimizer,
        "connection",
        "not_in_optimizer",
        also_true="does_not_move",
    ),
)

if __name__ == "__main__":
    main(CASES)
