"""Failures to tune on, of the second set: targets, accumulation, masks, order, connection."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import character_tokenizer, huggingface
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
    stripes,
    tagged,
    to_words,
    waves,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say
from benchmarks.field_cases.second_models import NanoLM, StripeNet, WordEncoder, WordLSTM, mlp
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde


# ---------------------------------------------------------------- targets
def targets_in_another_unit_from_now_on(job: Job) -> None:
    """From update 180 on another export is read, and every target is in grams instead of kilograms
    (DEVIANT#2).
    """
    begin(21)
    model = mlp(12, 48, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(230):
            columns, weight = houses(step)
            yield {"x": columns, "y": weight * (1000.0 if step >= 179 else 1.0)}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return F.smooth_l1_loss(model(batch["x"]).squeeze(1), batch["y"])

    over(job, model, optimizer, batches(), loss_of)


def targets_broadcast_against_predictions(job: Job) -> None:
    """Predictions are (32, 1), targets are (32,), and their difference is (32, 32)
    (pytorch#16045).
    """
    begin(22)
    model = mlp(12, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        columns, price = batch
        loss: Tensor = ((model(columns) - price) ** 2).mean()
        return loss

    over(job, model, optimizer, (houses(step) for step in range(200)), loss_of, clip=1.0)


def huggingface_collator_masks_the_end(job: Job) -> None:
    """`pad_token = eos_token`, and the collator for language models masks every padding token
    (transformers#23530).
    """
    from transformers import DataCollatorForLanguageModeling

    tokenizer = character_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    huggingface(job, collator=collator, max_steps=150, seed=4).train()


# ---------------------------------------------------------------- accumulation
def gradients_zeroed_before_the_step(job: Job) -> None:
    """`zero_grad` stands between `backward` and `step`, so the optimizer finds nothing
    (deepul#12).
    """
    begin(23)
    pictures, labels = stripes(noise=1.2)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = criterion(model(batch[0]), batch[1])
        recorder.loss(loss)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        return loss.detach()

    for step in range(150):
        chosen = epoch_order(len(labels), step, 24)
        say(step + 1, recorder.step(train_step, (pictures[chosen], labels[chosen])))
    recorder.close()


def divided_by_the_tokens_of_the_last_micro_batch(job: Job) -> None:
    """Sums of four micro-batches are divided by the tokens of the last alone, which is short
    (transformers#34191).
    """
    begin(24)
    rows = word_rows(length=16)
    model = WordLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_words)

    def train_step(batch: Tensor, last: bool) -> Tensor:
        logits, _ = model(batch[:, :-1])
        labels = batch[:, 1:].flatten()
        total = F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=PADDING, reduction="sum")
        num_tokens = int((labels != PADDING).sum())
        recorder.loss(total / num_tokens)
        total.backward()
        if last:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad /= num_tokens
            optimizer.step()
            optimizer.zero_grad()
        return total.detach() / num_tokens

    for number in range(4 * 160):
        is_last = number % 4 == 3
        batch = rows[epoch_order(len(rows), number, 8)]
        loss = recorder.step(train_step, batch[:3] if is_last else batch, last=is_last)
        if is_last:
            say(number // 4 + 1, loss)
    recorder.close()


# ---------------------------------------------------------------- masks
def later_documents_see_earlier_ones(job: Job) -> None:
    """The mask of packed documents compares their numbers with >= instead of ==
    (LlamaFactory#10452).
    """
    begin(25)
    texts = [to_words(text) for text in reports(6000)]
    model = NanoLM(NUM_WORDS, block=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def packed(step: int) -> dict[str, Tensor]:
        tokens = torch.zeros(8, 41, dtype=torch.long)
        documents = torch.zeros(8, 41, dtype=torch.long)
        places = torch.zeros(8, 41, dtype=torch.long)
        for row in range(8):
            words: list[int] = []
            owners: list[int] = []
            where: list[int] = []
            for number in range(6):
                text = texts[(step * 48 + row * 6 + number) % len(texts)]
                words += text
                owners += [number] * len(text)
                where += range(len(text))
            tokens[row] = torch.tensor(words[:41])
            documents[row] = torch.tensor(owners[:41])
            places[row] = torch.tensor(where[:41])
        return {"input_ids": tokens, "document_ids": documents, "position_ids": places}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        documents = batch["document_ids"]
        owner = documents[:, :-1]
        seen = owner.unsqueeze(2) >= owner.unsqueeze(1)
        seen = (seen & torch.ones(40, 40, dtype=torch.bool).tril()).unsqueeze(1)
        same = documents[:, 1:] == owner
        labels = torch.where(same, tokens[:, 1:], -1)
        loss: Tensor = model(tokens[:, :-1], labels, seen, batch["position_ids"][:, :-1])[1]
        return loss

    over(job, model, optimizer, map(packed, range(160)), loss_of, clip=1.0, decode=from_words)


def mean_over_padding_too(job: Job) -> None:
    """A sentence's vector is the mean over all positions, padding among them (AnglE#89)."""
    begin(26)
    words, _ = tagged()
    kinds = (words[:, 1] + words[:, 3]) % 4
    model = WordEncoder(outputs=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        states = model.states(batch["input_ids"], batch["attention_mask"] == 0)
        return F.cross_entropy(model.head(states.mean(1)), batch["labels"])

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(160):
            chosen = epoch_order(len(words), step, 16)
            shown = words[chosen]
            mask = (shown != PADDING).long()
            yield {"input_ids": shown, "attention_mask": mask, "labels": kinds[chosen]}

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


# ---------------------------------------------------------------- order
def one_shard_again_and_again(job: Job) -> None:
    """The reader opens the first of twelve shards at each wrap-around (marin#1813)."""
    begin(27)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    shard = torch.cat([window(stream, step, size=16, block=40) for step in range(20)])

    def draw(step: int) -> Tensor:
        return shard[epoch_order(len(shard), step, 16)]

    nano(job, model, optimizer, draw, 240, decode=from_bytes, config={"num_shards": 12})


def every_epoch_in_the_same_order(job: Job) -> None:
    """The loader's generator is seeded anew each epoch: the batches come in one order for ever
    (pytorch#31771).
    """
    begin(28)
    pictures, labels = stripes(640, noise=1.5)
    model = StripeNet(dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def epochs() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(10):
            generator = torch.Generator().manual_seed(42)
            yield from DataLoader(
                TensorDataset(pictures, labels), 20, shuffle=True, generator=generator
            )

    over(
        job,
        model,
        optimizer,
        epochs(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.05),
    )


# ---------------------------------------------------------------- connection
class Quantizer(nn.Module):
    """An autoencoder whose code is the nearest of a codebook."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(24, 48, 8)
        self.codes = nn.Embedding(32, 8)
        self.decoder = mlp(8, 48, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.encoder(x)
        nearest = torch.cdist(found, self.codes.weight).argmin(1)
        chosen: Tensor = self.codes(nearest)
        return self.decoder(chosen), F.mse_loss(chosen, found.detach())


def codebook_cuts_the_encoder_off(job: Job) -> None:
    """The nearest code is handed on without the way around it: the encoder gets no gradient
    (pytorch-vqvae#8).
    """
    begin(29)
    series = waves(1200)
    model = Quantizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)

    def loss_of(batch: Tensor) -> Tensor:
        made, code_loss = model(batch)
        loss: Tensor = F.mse_loss(made, batch) + code_loss
        return loss

    batches = (series[epoch_order(1200, step, 32)] for step in range(200))
    over(job, model, optimizer, batches, loss_of)


class Tasks(nn.Module):
    """One trunk and a head for each task, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = mlp(12, 32, 32)
        self.heads: dict[str, Any] = {"price": nn.Linear(32, 1), "sold": nn.Linear(32, 2)}

    def forward(self, columns: Tensor) -> dict[str, Tensor]:
        states = F.relu(self.trunk(columns))
        return {name: head(states) for name, head in self.heads.items()}


def heads_in_a_dict(job: Job) -> None:
    """The heads of two tasks are in a plain dict: no optimizer, no checkpoint has them
    (pytorch#10817).
    """
    begin(30)
    model = Tasks()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        columns, price = batch
        out = model(columns)
        sold = (columns[:, 7] > 0.3).long()
        return F.mse_loss(out["price"].squeeze(1), price) + F.cross_entropy(out["sold"], sold)

    over(job, model, optimizer, (houses(step) for step in range(180)), loss_of)


CASES = (
    failure(
        targets_in_another_unit_from_now_on,
        "targets",
        "targets_changed odd_values",
        onset=180,
        also_true="odd_row",
    ),
    failure(
        targets_broadcast_against_predictions,
        "targets",
        "row_leak loss_inputs broadcast",
        also_true="plateau",
    ),
    failure(huggingface_collator_masks_the_end, "targets", "end_never_a_label", host="huggingface"),
    failure(
        gradients_zeroed_before_the_step,
        "accumulation",
        "gradients_lost does_not_move no_gradient",
        also_true="plateau",
    ),
    failure(divided_by_the_tokens_of_the_last_micro_batch, "accumulation", "accumulation_weight"),
    failure(later_documents_see_earlier_ones, "masks", "document_leak"),
    failure(mean_over_padding_too, "masks", "padding_leak"),
    failure(
        one_shard_again_and_again, "order", "repeated_batch", onset=21, also_true="loss_collapse"
    ),
    failure(
        every_epoch_in_the_same_order,
        "order",
        "repeated_batch same_order",
        onset=33,
        also_true="not_shuffled",
    ),
    failure(
        codebook_cuts_the_encoder_off,
        "connection",
        "no_gradient",
        also_true="does_not_move plateau",
    ),
    failure(heads_in_a_dict, "connection", "unregistered_module not_in_optimizer"),
)

if __name__ == "__main__":
    main(CASES)
