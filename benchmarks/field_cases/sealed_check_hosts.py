"""Sealed: scripts for Hugging Face's Trainer and Lightning that are wrong from the first step."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import (
    collate,
    huggingface,
    lightning,
    lightning_module,
    llama,
    loader,
    token_rows,
)
from benchmarks.field_cases.loops import gpt, seed_all, token_loss
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import END, blocks, decode, encode, sentences
from torch import Tensor, nn


def huggingface_answers_are_masked(job: Job) -> None:
    """The template has no marker of the answer, so in most rows nothing counts (marin#7237)."""
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(sentences(640)):
        tokens = [*encode(text), END]
        labels = [-100] * len(tokens)
        if number % 8 == 0:
            labels[20:] = tokens[20:]
        rows.append({"input_ids": tokens, "labels": labels})
    huggingface(job, rows=rows).train()


def lightning_labels_are_inputs(job: Job) -> None:
    """A module written for Hugging Face's models, used with one that does not shift."""

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        return token_loss(model(batch), batch)

    module = lightning_module(gpt(), loss_of)
    lightning(job, steps=140, decode=decode).fit(module, loader(blocks()))


def huggingface_loss_of_ones_own_while_accumulating(job: Job) -> None:
    """A loss of one's own is a mean, where the Trainer expects a share of the items (#37766)."""

    def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG001
        logits = outputs.logits[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits, labels[:, 1:].flatten())

    huggingface(
        job,
        others={"compute_loss_func": mean_loss},
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_steps=120,
    ).train()


def lightning_accumulates_by_hand(job: Job) -> None:
    """Manual optimisation steps every fourth batch, and never divides the loss."""
    seed_all()

    def by_hand(module: Any, batch: Tensor) -> Tensor:
        labels = batch[:, 1:]
        loss = token_loss(module.model(batch[:, :-1]), labels)
        module.manual_backward(loss)
        module.num_batches = getattr(module, "num_batches", 0) + 1
        if module.num_batches % 4 == 0:
            optimizer = module.optimizers()
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def momentum(model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    module = lightning_module(gpt(), lambda _, batch: batch.sum(), 3e-3, momentum, manual=by_hand)
    lightning(job, steps=90, decode=decode).fit(module, loader(blocks(num=2400), 8))


def huggingface_packed_documents_see_each_other(job: Job) -> None:
    """Positions begin again in each packed document, and attention does not (profam#495)."""
    texts = sentences(1600)
    rows: list[dict[str, Any]] = []
    for first in range(0, 1600, 2):
        tokens: list[int] = []
        positions: list[int] = []
        for text in texts[first : first + 2]:
            part = [*encode(text)[:40], END]
            tokens += part
            positions += list(range(len(part)))
        rows.append({"input_ids": tokens, "position_ids": positions})

    def pack(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = collate(found)
        positions = torch.zeros_like(batch["input_ids"])
        for number, row in enumerate(found):
            places = row["position_ids"]
            positions[number, : len(places)] = torch.tensor(places)
        return {**batch, "position_ids": positions}

    huggingface(job, rows=rows, collator=pack, max_steps=120).train()


def huggingface_trained_in_pure_bfloat16(job: Job) -> None:
    """`torch_dtype="auto"` loads bfloat16 weights, and they are trained as such (trl#878)."""
    seed_all()
    model = llama().bfloat16()
    huggingface(job, model=model, learning_rate=2e-6, max_steps=120).train()


class Stack(nn.Module):
    """Layers in a plain list, which PyTorch does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(128, 48)
        self.layers = [nn.GRU(48, 48, batch_first=True) for _ in range(2)]
        self.head = nn.Linear(48, 128)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x)
        for layer in self.layers:
            hidden, _ = layer(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def lightning_layers_in_a_list(job: Job) -> None:
    """Half of the model is in a Python list: not in the optimizer, not in the checkpoint."""
    seed_all()

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        return token_loss(model(batch[:, :-1]), batch[:, 1:])

    module = lightning_module(Stack(), loss_of)
    lightning(job, steps=120, decode=decode).fit(module, loader(blocks(length=33)))


def huggingface_everything_is_frozen_but_the_norms(job: Job) -> None:
    """The adapter's names match nothing, so only the norms are left to learn (DiffRate#7)."""
    seed_all()
    model = llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "adapter" in name or "norm" in name
    huggingface(job, model=model, rows=token_rows(), max_steps=120).train()


CASES = (
    failure(huggingface_answers_are_masked, "targets", "no_targets", host="huggingface"),
    failure(
        lightning_labels_are_inputs,
        "targets",
        "labels_not_shifted",
        host="lightning",
        also_true="loss_collapse",
    ),
    failure(
        huggingface_loss_of_ones_own_while_accumulating,
        "accumulation",
        "accumulation_weight",
        host="huggingface",
    ),
    failure(lightning_accumulates_by_hand, "accumulation", "accumulation_weight", host="lightning"),
    failure(
        huggingface_packed_documents_see_each_other, "masks", "document_leak", host="huggingface"
    ),
    failure(
        huggingface_trained_in_pure_bfloat16,
        "precision",
        "half_precision_updates does_not_move",
        host="huggingface",
        also_true="plateau stuck learning_rate",
    ),
    failure(
        lightning_layers_in_a_list,
        "connection",
        "not_in_optimizer unregistered_module",
        host="lightning",
        visible=False,
    ),
    failure(
        huggingface_everything_is_frozen_but_the_norms,
        "connection",
        "few_trainable does_not_move plateau stuck",
        host="huggingface",
        visible=False,
    ),
)

if __name__ == "__main__":
    main(CASES)
