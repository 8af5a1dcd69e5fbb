"""Sealed, second set: targets, accumulation and masks."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import huggingface, lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    NUM_WORDS,
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    spelled,
    stripes,
    tagged,
    waves,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import begin, over, say
from benchmarks.field_cases.second_models import (
    NanoLM,
    Reverser,
    StripeNet,
    WordEncoder,
    WordLSTM,
)
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- targets
def labels_of_the_batch_before(job: Job) -> None:
    """A prefetcher hands out the labels of the batch before (faster-rcnn.pytorch#562)."""
    begin(111)
    pictures, labels = stripes()
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(200):
            shown = epoch_order(len(labels), step + 1, 24)
            named = epoch_order(len(labels), step, 24)
            yield pictures[shown], labels[named]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
    )


def likelihood_of_raw_scores(job: Job) -> None:
    """`nn.NLLLoss` is given scores without `log_softmax`: the loss falls below zero for ever
    (Pointnet_Pointnet2_pytorch#30).
    """
    begin(112)
    pictures, labels = stripes(noise=1.0)
    model = StripeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.NLLLoss()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(160):
            chosen = epoch_order(len(labels), step, 32)
            yield pictures[chosen], labels[chosen]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = criterion(model(batch[0]), batch[1])
        return loss

    over(job, model, optimizer, batches(), loss_of)


def targets_are_the_tokens_before(job: Job) -> None:
    """Inputs and targets are cut the wrong way round: each position predicts the token before it
    (nanochat#834).
    """
    begin(113)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_bytes)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        loss: Tensor = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for step in range(160):
        rows = window(stream, step, size=12, block=40)
        say(step + 1, recorder.step(train_step, (rows[:, 1:], rows[:, :-1])))
    recorder.close()


def decoder_is_given_its_answer(job: Job) -> None:
    """The decoder's input is the labels themselves and was not moved to the right
    (transformers#7865).
    """
    begin(114)
    model = Reverser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        labels = target[:, 1:]
        scores = model(source, labels)
        return F.cross_entropy(scores.transpose(1, 2), labels, ignore_index=0)

    over(job, model, optimizer, map(spelled, range(150)), loss_of, clip=1.0)


def scores_and_targets_flattened_apart(job: Job) -> None:
    """Scores are flattened time first, targets row first, so that each meets another's
    (unsloth#6524).
    """
    begin(115)
    rows = word_rows(length=14)
    model = WordLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: Tensor) -> Tensor:
        scores, _ = model(batch[:, :-1])
        by_time = scores.permute(1, 0, 2).reshape(-1, NUM_WORDS)
        return F.cross_entropy(by_time, batch[:, 1:].reshape(-1), ignore_index=PADDING)

    batches = (rows[epoch_order(len(rows), step, 16)] for step in range(180))
    over(job, model, optimizer, batches, loss_of, decode=from_words)


# ---------------------------------------------------------------- accumulation
def huggingface_loss_divided_once_more(job: Job) -> None:
    """A loss of one's own divides by the items of all micro-batches, and by their number too
    (transformers#35438).
    """

    def shared_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        scores = outputs.logits[:, :-1].flatten(0, 1).float()
        total = F.cross_entropy(scores, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
        loss: Tensor = total / num_items_in_batch / 4
        return loss

    huggingface(
        job,
        max_steps=120,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        optim="sgd",
        learning_rate=0.5,
        others={"compute_loss_func": shared_loss},
    ).train()


def short_window_at_the_end_of_an_epoch(job: Job) -> None:
    """An epoch has ten micro-batches and a window has four: the last two are divided by four
    (transformers#38837).
    """
    begin(116)
    pictures, labels = stripes(160, noise=1.5)
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor], last: bool) -> Tensor:
        loss = recorder.loss(F.cross_entropy(model(batch[0]), batch[1]))
        (loss / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    num_updates = 0
    for number in range(600):
        place = number % 10
        is_last = place in (3, 7, 9)
        chosen = epoch_order(160, number, 16)
        loss = recorder.step(train_step, (pictures[chosen], labels[chosen]), last=is_last)
        if is_last:
            num_updates += 1
            say(num_updates, loss)
    recorder.close()


def lightning_clips_each_micro_batch(job: Job) -> None:
    """Optimised by hand, the gradient is clipped after each of four micro-batches: what came first
    shrinks each time (OpenNMT-py#2209).
    """
    begin(117)
    stream = byte_stream()
    rows = torch.cat([window(stream, step, size=12, block=32) for step in range(90)])

    def by_hand(module: Any, batch: Tensor) -> Tensor:
        optimizer = module.optimizers()
        loss: Tensor = module.model(batch[:, :-1], batch[:, 1:])[1]
        module.manual_backward(loss / 4)
        torch.nn.utils.clip_grad_norm_(module.model.parameters(), 0.05)
        module.num_micro += 1
        if module.num_micro % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch[:, :-1], batch[:, 1:])[1]
        return loss

    module = lightning_module(NanoLM(), loss_of, manual=by_hand)
    module.num_micro = 0
    lightning(job, steps=130, decode=from_bytes).fit(module, loader(rows, 6))


def zeroed_every_fourth_step_only(job: Job) -> None:
    """The optimizer steps after every batch, and the gradients are zeroed after every fourth
    (HydraGNN#116).
    """
    begin(118)
    words, tags = tagged()
    model = WordEncoder(outputs=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_words)
    done = 0

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = model(batch[0], batch[0] == PADDING)
        loss = recorder.loss(F.cross_entropy(scores.transpose(1, 2), batch[1], ignore_index=0))
        loss.backward()
        optimizer.step()
        if done % 4 == 3:
            optimizer.zero_grad()
        return loss.detach()

    for step in range(180):
        done = step
        chosen = epoch_order(len(words), step, 16)
        say(step + 1, recorder.step(train_step, (words[chosen], tags[chosen])))
    recorder.close()


# ---------------------------------------------------------------- masks
class OverTime(nn.Module):
    """Attention over the time of a series, as it is meant."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(1, 24)
        self.place = nn.Embedding(24, 24)
        self.attend = nn.MultiheadAttention(24, 2)
        self.head = nn.Linear(24, 1)

    def forward(self, series: Tensor) -> Tensor:
        x = self.lift(series.unsqueeze(2)) + self.place(torch.arange(series.shape[1]))
        mixed, _ = self.attend(x, x, x)
        speed: Tensor = self.head(torch.tanh(x + mixed).mean(1)).squeeze(1)
        return speed


def lightning_attention_over_the_batch(job: Job) -> None:
    """`nn.MultiheadAttention` without `batch_first=True`: rows attend to rows (pytorch#25100)."""
    begin(119)
    series = waves(1600)
    energy = series.diff(dim=1).square().mean(1)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    module = lightning_module(OverTime(), loss_of, lr=3e-3)
    rows = list(zip(series, energy, strict=True))
    lightning(job, steps=200).fit(module, loader(rows, 16))


class BothWays(nn.Module):
    """A language model with a recurrent network that reads in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_WORDS, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, NUM_WORDS)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.out(self.lstm(self.embed(words))[0])
        return scores


def language_model_that_reads_both_ways(job: Job) -> None:
    """`bidirectional=True` in a model of the next word: it sees what it is to predict
    (LlamaFactory#7318).
    """
    begin(120)
    rows = word_rows(length=16)
    model = BothWays()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def loss_of(batch: Tensor) -> Tensor:
        scores = model(batch[:, :-1])
        return F.cross_entropy(scores.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)

    batches = (rows[epoch_order(len(rows), step, 20)] for step in range(180))
    over(job, model, optimizer, batches, loss_of, decode=from_words)


class Waves(nn.Module):
    """Convolutions over the bytes of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 40)
        self.first = nn.Conv1d(40, 64, 5, padding=2)
        self.second = nn.Conv1d(64, 64, 5, padding=2)
        self.out = nn.Linear(64, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        x = F.gelu(self.second(F.gelu(self.first(x))))
        scores: Tensor = self.out(x.transpose(1, 2))
        return scores


def convolution_reaches_into_the_future(job: Job) -> None:
    """A convolution over time is padded on both sides instead of on the left alone
    (flash-attention#2381).
    """
    begin(121)
    stream = byte_stream()
    model = Waves()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(rows: Tensor) -> Tensor:
        chances = torch.log_softmax(model(rows[:, :-1]), dim=-1)
        return -chances.gather(2, rows[:, 1:].unsqueeze(2)).mean()

    batches = (window(stream, step, size=12, block=40) for step in range(170))
    over(job, model, optimizer, batches, loss_of, decode=from_bytes)


def padding_mask_the_wrong_way_round(job: Job) -> None:
    """`src_key_padding_mask` is true where there are words: only padding is attended to
    (TransformerTranslation#2).
    """
    begin(122)
    words, tags = tagged()
    model = WordEncoder(outputs=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=0)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["input_ids"], batch["attention_mask"].bool())
        loss: Tensor = criterion(scores.flatten(0, 1), batch["labels"].flatten())
        return loss

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(160):
            chosen = epoch_order(len(words), step, 16)
            mask = (words[chosen] != PADDING).long()
            yield {"input_ids": words[chosen], "attention_mask": mask, "labels": tags[chosen]}

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


CASES = (
    failure(
        labels_of_the_batch_before,
        "targets",
        "labels_unrelated plateau",
        also_true="odd_row",
        visible=False,
    ),
    failure(
        likelihood_of_raw_scores,
        "targets",
        "loss_inputs negative_loss",
        also_true="loss_collapse",
    ),
    failure(
        targets_are_the_tokens_before, "targets", "labels_misaligned", also_true="loss_collapse"
    ),
    failure(
        decoder_is_given_its_answer,
        "targets",
        "labels_not_shifted future_leak",
        also_true="loss_collapse",
    ),
    failure(
        scores_and_targets_flattened_apart,
        "targets",
        "labels_misaligned labels_unrelated row_leak",
        also_true="plateau future_leak",
    ),
    failure(
        huggingface_loss_divided_once_more,
        "accumulation",
        "accumulation_weight",
        host="huggingface",
    ),
    failure(short_window_at_the_end_of_an_epoch, "accumulation", "accumulation_weight", onset=3),
    failure(
        lightning_clips_each_micro_batch,
        "accumulation",
        "accumulation_weight clipped_each_micro_batch",
        host="lightning",
    ),
    failure(zeroed_every_fourth_step_only, "accumulation", "gradients_left_over"),
    failure(lightning_attention_over_the_batch, "masks", "row_leak", host="lightning"),
    failure(language_model_that_reads_both_ways, "masks", "future_leak", also_true="loss_collapse"),
    failure(convolution_reaches_into_the_future, "masks", "future_leak", also_true="loss_collapse"),
    failure(padding_mask_the_wrong_way_round, "masks", "padding_leak"),
)

if __name__ == "__main__":
    main(CASES)
