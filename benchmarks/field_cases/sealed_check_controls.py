"""Sealed: right scripts that a check may take for wrong ones."""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import (
    huggingface,
    lightning,
    lightning_module,
    loader,
)
from benchmarks.field_cases.loops import adamw, gpt, next_token_loss, seed_all, token_loss, train
from benchmarks.field_cases.models import ConvNet, Pictures, measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import END, batches, blocks, decode, encode, padded, sentences
from torch import Tensor, nn


class LowRank(nn.Module):
    """A frozen layer with a small, trainable sum beside it; half of that begins at zero."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(rank))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return result


def low_rank_adapters(job: Job) -> None:
    """Only adapters learn, as in LoRA."""
    model = gpt()
    for parameter in model.parameters():
        parameter.requires_grad = False
    names = [name for name, _ in model.named_modules() if name.endswith((".qkv", ".mlp.0"))]
    for name in names:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        model.set_submodule(name, LowRank(layer))
    model.head = nn.Linear(48, model.head.out_features)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=5e-3)
    every = batches(blocks(), 160)
    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), every)


def packed_with_a_block_mask(job: Job) -> None:
    """Three documents a row; none sees another, and positions begin again."""
    model = gpt()
    document = torch.arange(48) // 16
    same = document[:, None] == document[None, :]
    seen = same & torch.ones(48, 48).tril().bool()
    positions = torch.arange(48) % 16

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"], mask=seen, positions=batch["position_ids"])
        return token_loss(logits, batch["labels"])

    def packed() -> Iterator[dict[str, Tensor]]:
        for batch in batches(blocks(), 140):
            labels = batch[:, 1:].clone()
            labels[:, 15::16] = -100
            yield {
                "input_ids": batch[:, :-1],
                "position_ids": positions.expand(len(batch), -1),
                "labels": labels,
            }

    train(job, model, adamw(model), loss_of, packed())


def masked_language_model(job: Job) -> None:
    """Every position sees every other, as it should: 15 % are hidden and predicted."""
    model = gpt(causal=False, dropout=0.0)
    hidden_token = 2
    rows = padded(sentences(1200), length=32)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        return token_loss(model(batch["input_ids"]), batch["labels"])

    def hidden() -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(4)
        for batch in batches(rows, 280):
            is_hidden = torch.rand(batch.shape, generator=generator) < 0.15
            yield {
                "input_ids": batch.masked_fill(is_hidden, hidden_token),
                "labels": batch.masked_fill(~is_hidden, -100),
            }

    train(job, model, adamw(model, lr=5e-3), loss_of, hidden())


def classifier_with_frozen_batch_norm(job: Job) -> None:
    """The BatchNorm layers stay in evaluation mode on purpose: a fine-tuning of pictures."""
    pictures = Pictures()
    seed_all()
    model = ConvNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    every = (pictures.batch(step) for step in range(160))
    train(job, model, adamw(model, lr=1e-3), loss_of, every, has_text=False)


def tied_embeddings(job: Job) -> None:
    """The head is the embedding."""
    model = gpt()
    model.head.weight = model.tokens.weight
    every = batches(blocks(), 160)
    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), every)


def huggingface_answers_alone_count(job: Job) -> None:
    """The prompt is masked, and every answer counts to its end."""
    rows: list[dict[str, Any]] = []
    for text in sentences(640):
        tokens = [*encode(text), END]
        rows.append({"input_ids": tokens, "labels": [-100] * 16 + tokens[16:]})
    huggingface(job, rows=rows).train()


def lightning_two_optimizers(job: Job) -> None:
    """A generator and a discriminator, each with an optimizer, optimised by hand."""
    seed_all()
    model = nn.ModuleDict({"generator": network(8, 2, 32), "critic": network(2, 1, 32)})

    def by_hand(module: Any, batch: Any) -> Tensor:
        first, second = module.optimizers()
        made = module.model["generator"](batch[1])
        ones = torch.ones(len(made), 1)
        loss = F.binary_cross_entropy_with_logits(module.model["critic"](made), ones)
        first.zero_grad()
        module.manual_backward(loss)
        first.step()
        real = F.binary_cross_entropy_with_logits(module.model["critic"](batch[0]), ones)
        scores = module.model["critic"](made.detach())
        fake = F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores))
        second.zero_grad()
        module.manual_backward(real + fake)
        second.step()
        return loss

    def two(found: nn.Module) -> Any:
        parts = dict(found.named_children())
        return (
            torch.optim.Adam(parts["generator"].parameters(), lr=1e-3),
            torch.optim.Adam(parts["critic"].parameters(), lr=1e-3),
        )

    rows: list[tuple[Tensor, Tensor]] = []
    for step in range(120):
        x, y = measurements(step)
        rows.append((torch.cat((y, x[:, :1]), dim=1), x[:, 4:12]))
    module = lightning_module(model, lambda _, batch: batch[0].sum(), 1e-3, two, manual=by_hand)
    lightning(job, steps=240).fit(module, loader(rows, None, shuffle=False))


def lightning_accumulates_four(job: Job) -> None:
    """`accumulate_grad_batches=4` does it right."""
    module = lightning_module(gpt(), next_token_loss)
    trainer = lightning(job, steps=90, decode=decode, accumulate_grad_batches=4)
    trainer.fit(module, loader(blocks(num=2400), 8))


CASES = (
    control(low_rank_adapters),
    control(packed_with_a_block_mask),
    control(masked_language_model),
    control(classifier_with_frozen_batch_norm),
    control(tied_embeddings),
    control(huggingface_answers_alone_count, host="huggingface"),
    control(lightning_two_optimizers, host="lightning"),
    control(lightning_accumulates_four, host="lightning"),
)

if __name__ == "__main__":
    main(CASES)
