"""Sealed, second set: trainings with which nothing is wrong, and whose set-up looks odd."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import character_tokenizer, huggingface
from benchmarks.field_cases.loops import seed_all
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    MASKED,
    NUM_WORDS,
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    reports,
    stripes,
    to_words,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import begin, over, say
from benchmarks.field_cases.second_models import NanoLM, StripeNet, WordEncoder, WordLSTM, mlp
from benchmarks.field_cases.texts import NUM_CHARACTERS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde


def new_head_on_a_frozen_network(job: Job) -> None:
    """A network that was trained before stays frozen and in evaluation mode; a new head learns."""
    begin(141)
    pictures, labels = stripes(noise=2.2)
    model = StripeNet()
    before = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(60):
        chosen = epoch_order(len(labels), step, 24)
        F.cross_entropy(model(pictures[chosen]), labels[chosen]).backward()
        before.step()
        before.zero_grad()
    model.requires_grad_(False)
    model.fc = nn.Linear(16, 5)
    model.eval()
    model.fc.train()
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.02, momentum=0.9)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(200):
            chosen = epoch_order(len(labels), 100 + step, 24)
            yield pictures[chosen], labels[chosen]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
    )


def answers_that_are_preferred(job: Job) -> None:
    """Pairs of answers with a frozen copy for reference: the loss begins at ln 2 exactly."""
    begin(142)
    rows = word_rows(1200, length=16)
    model = WordLSTM()
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)

    def likelihood(network: WordLSTM, words: Tensor) -> Tensor:
        chances = torch.log_softmax(network(words[:, :-1])[0], dim=-1)
        each = chances.gather(2, words[:, 1:].unsqueeze(2)).squeeze(2)
        return each.masked_fill(words[:, 1:] == PADDING, 0.0).sum(1)

    def loss_of(pair: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            usual = likelihood(reference, pair["chosen"]) - likelihood(reference, pair["rejected"])
        now = likelihood(model, pair["chosen"]) - likelihood(model, pair["rejected"])
        margin = now - usual
        return -F.logsigmoid(0.2 * margin).mean()

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(180):
            chosen = rows[epoch_order(len(rows), step, 12)]
            rejected = chosen.clone()
            rejected[:, 1:4] = rejected[:, 1:4].flip(1)
            yield {"chosen": chosen, "rejected": rejected}

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


class Lean(NanoLM):
    """Computes each layer once more in the backward pass, to save memory."""

    def hidden(self, x: Tensor, seen: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1]) if at is None else at
        states: Tensor = self.wte(x) + self.wpe(places)
        for layer in self.h:
            states = checkpoint(layer, states, seen, use_reentrant=False)
        out: Tensor = self.ln_f(states)
        return out


def layers_are_computed_twice(job: Job) -> None:
    """Gradient checkpointing with dropout, and a head that is the embedding."""
    begin(143)
    stream = byte_stream()
    model = Lean(tied=True, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        return loss

    batches = (window(stream, step, size=10, block=40) for step in range(160))
    over(job, model, optimizer, batches, loss_of, clip=1.0, decode=from_bytes)


def state_is_carried_along_the_text(job: Job) -> None:
    """A text is read in order, and each batch begins with the state in which the last one ended."""
    begin(144)
    stream = byte_stream(6000)
    model = WordLSTM(256)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    lanes = stream[: len(stream) // 16 * 16].view(16, -1)
    memory: dict[str, Any] = {"state": None}
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_bytes)

    def train_step(rows: Tensor) -> Tensor:
        scores, state = model(rows[:, :-1], memory["state"])
        memory["state"] = tuple(part.detach() for part in state)
        loss = recorder.loss(F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten()))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    for step in range(200):
        say(step + 1, recorder.step(train_step, lanes[:, step * 32 : step * 32 + 33]))
    recorder.close()


class Experts(nn.Module):
    """Each row goes to the expert that a gate chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(12, 6)
        self.experts = nn.ModuleList(mlp(12, 24, 1) for _ in range(6))

    def forward(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        chances = torch.softmax(self.gate(columns), dim=1)
        weight, chosen = chances.max(1)
        out = torch.zeros(len(columns))
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out[mine] = weight[mine] * expert(columns[mine]).squeeze(1)
        balance = 6 * (chances.mean(0) * F.one_hot(chosen, 6).float().mean(0)).sum()
        return out, balance


def experts_that_are_rarely_chosen(job: Job) -> None:
    """Batches of eight rows and six experts: some get no gradient for a while."""
    begin(145)
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        found, balance = model(batch[0])
        loss: Tensor = F.mse_loss(found, batch[1]) + 0.01 * balance
        return loss

    over(job, model, optimizer, (houses(step, 8) for step in range(300)), loss_of)


def layers_thaw_one_by_one(job: Job) -> None:
    """First the head alone learns; at 60 and 120 a layer more gets a group of its own."""
    begin(146)
    stream = byte_stream()
    model = NanoLM()
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.lm_head.parameters(), lr=4e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_bytes)

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in range(180):
        if step in (60, 120):
            layer = model.h[1 if step == 60 else 0]
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 2e-3})
        say(step + 1, recorder.step(train_step, window(stream, step, size=12, block=40)))
    recorder.close()


def prefix_is_seen_both_ways(job: Job) -> None:
    """A prefix language model: twelve tokens see each other, and only what follows counts."""
    begin(147)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    seen = torch.ones(40, 40, dtype=torch.bool).tril()
    seen[:12, :12] = True

    def loss_of(rows: Tensor) -> Tensor:
        labels = rows[:, 1:].clone()
        labels[:, :12] = -1
        loss: Tensor = model(rows[:, :-1], labels, seen)[1]
        return loss

    batches = (window(stream, step, size=12, block=40) for step in range(160))
    over(job, model, optimizer, batches, loss_of, clip=1.0, decode=from_bytes)


def packed_answers_with_a_mask(job: Job) -> None:
    """Several prompts and answers a row; none sees another, and only answers count."""
    begin(148)
    texts = [to_words(text) for text in reports(6000)]
    model = NanoLM(NUM_WORDS, block=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def packed(step: int) -> dict[str, Tensor]:
        columns: dict[str, list[list[int]]] = {"input_ids": [], "position_ids": []}
        columns["document_ids"] = []
        for row in range(8):
            words: list[int] = []
            places: list[int] = []
            owners: list[int] = []
            for number in range(6):
                text = texts[(step * 48 + row * 6 + number) % len(texts)]
                words += text
                places += range(len(text))
                owners += [number] * len(text)
            columns["input_ids"].append(words[:41])
            columns["position_ids"].append(places[:41])
            columns["document_ids"].append(owners[:41])
        return {name: torch.tensor(found) for name, found in columns.items()}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        owner = batch["document_ids"]
        places = batch["position_ids"]
        seen = owner[:, :-1].unsqueeze(2) == owner[:, :-1].unsqueeze(1)
        seen = (seen & torch.ones(40, 40, dtype=torch.bool).tril()).unsqueeze(1)
        is_answer = (owner[:, 1:] == owner[:, :-1]) & (places[:, 1:] >= 3)
        labels = torch.where(is_answer, batch["input_ids"][:, 1:], -1)
        loss: Tensor = model(batch["input_ids"][:, :-1], labels, seen, places[:, :-1])[1]
        return loss

    over(job, model, optimizer, map(packed, range(160)), loss_of, clip=1.0, decode=from_words)


def huggingface_words_are_hidden(job: Job) -> None:
    """A small BERT and the collator that hides a sixth of the tokens."""
    from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

    seed_all(3)
    config = BertConfig(
        vocab_size=NUM_CHARACTERS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=0,
    )
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "~"})
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.16)
    huggingface(
        job, model=BertForMaskedLM(config), collator=collator, max_steps=150, learning_rate=2e-3
    ).train()


def hidden_words_from_both_sides(job: Job) -> None:
    """An encoder that sees both ways fills in a fifth of the words; padding is masked."""
    begin(149)
    rows = word_rows(length=16)
    model = WordEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def hide(step: int) -> dict[str, Tensor]:
        words = rows[epoch_order(len(rows), step, 16)]
        dice = random.Random(step)
        hidden = torch.tensor([[dice.random() < 0.2 for _ in range(16)] for _ in range(16)])
        hidden &= words > 3
        return {
            "input_ids": torch.where(hidden, MASKED, words),
            "labels": torch.where(hidden, words, -100),
        }

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["input_ids"], batch["input_ids"] == PADDING)
        return F.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())

    over(job, model, optimizer, map(hide, range(170)), loss_of, decode=from_words)


CASES = (
    control(new_head_on_a_frozen_network),
    control(answers_that_are_preferred),
    control(layers_are_computed_twice),
    control(state_is_carried_along_the_text),
    control(experts_that_are_rarely_chosen),
    control(layers_thaw_one_by_one),
    control(prefix_is_seen_both_ways),
    control(packed_answers_with_a_mask),
    control(huggingface_words_are_hidden, host="huggingface"),
    control(hidden_words_from_both_sides),
)

if __name__ == "__main__":
    main(CASES)
