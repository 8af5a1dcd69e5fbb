"""Text to learn from: sentences of a small grammar, as characters or as words.

Everything follows from a seed. A corpus of 4,000 sentences takes 20 ms.
"""

import random
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

CHARACTERS: Final = (
    "\x00\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    ".,;:!?'\"-()<>/{}=_#*&@%$+[]\\|~^`ÃÂ©ãåäöüßéø"
)
NUM_CHARACTERS: Final = len(CHARACTERS)
PAD: Final = 0
END: Final = 1
_NUMBER: Final = {character: number for number, character in enumerate(CHARACTERS)}

_WHO: Final = (
    "Anna", "The baker", "My brother", "An old sailor", "Doctor Weber", "The children", "Nobody",
    "Our neighbour", "The young clerk", "A tired nurse", "Thomas", "The mayor", "Her cousin",
    "The gardener", "Two students", "Miss Clarke", "The driver", "A stranger", "The judge",
)  # fmt: skip
_DID: Final = (
    "bought", "lost", "painted", "remembered", "carried", "sold", "found", "repaired", "described",
    "wanted", "borrowed", "forgot", "opened", "hid", "counted", "promised", "drew", "washed",
)  # fmt: skip
_WHAT: Final = (
    "a wooden box", "the silver key", "three letters", "an empty bottle", "the garden wall",
    "seven apples", "a heavy coat", "the broken clock", "a map of the coast", "some fresh bread",
    "the blue bicycle", "a bag of flour", "his only umbrella", "the kitchen window", "a long rope",
)  # fmt: skip
_WHERE: Final = (
    "near the harbour", "in the market", "behind the church", "at the station", "by the river",
    "under the bridge", "in a small village", "on the second floor", "before the storm",
    "after the meeting", "early in the morning", "without a word", "for the last time",
)  # fmt: skip
_AND: Final = (
    "because the shop was closed", "although it rained", "and went home", "but nobody noticed",
    "while the others slept", "as he had said", "before anyone could ask", "and laughed",
)  # fmt: skip
WORDS: Final = tuple(sorted({word for part in (_WHO, _DID, _WHAT, _WHERE, _AND)
                             for phrase in part for word in phrase.split()}))  # fmt: skip


def sentence(dice: random.Random) -> str:
    """Say something."""
    parts = [dice.choice(_WHO), dice.choice(_DID), dice.choice(_WHAT), dice.choice(_WHERE)]
    if dice.random() < 0.4:
        parts.append(dice.choice(_AND))
    return " ".join(parts) + "."


def sentences(num: int, seed: int = 1) -> list[str]:
    """Say many things."""
    dice = random.Random(seed)
    return [sentence(dice) for _ in range(num)]


def encode(text: str) -> list[int]:
    """Characters as tokens."""
    return [_NUMBER.get(character, _NUMBER["?"]) for character in text]


def decode(tokens: list[int]) -> str:
    """Tokens as characters."""
    return "".join(CHARACTERS[token] for token in tokens if 0 < token < NUM_CHARACTERS)


def blocks(num: int = 1200, length: int = 49, seed: int = 1) -> Tensor:
    """Rows cut from one long text, side by side."""
    text = " ".join(sentences(num * length // 40, seed))
    tokens = encode(text)[: num * length]
    return torch.tensor(tokens).view(num, length)


def padded(texts: list[str], length: int = 64) -> Tensor:
    """A sentence each row, an end, then padding."""
    rows = torch.full((len(texts), length), PAD)
    for row, text in zip(rows, texts, strict=True):
        tokens = [*encode(text)[: length - 1], END]
        row[: len(tokens)] = torch.tensor(tokens)
    return rows


def block_of(text: str, length: int = 49) -> Tensor:
    """A row that holds this text over and over."""
    tokens = encode(text)
    return torch.tensor((tokens * (length // len(tokens) + 1))[:length])


def batch_at(rows: Tensor, step: int, size: int = 16, seed: int = 5) -> Tensor:
    """The batch of a step, from 0: every row once an epoch, in an order of the epoch's own."""
    per_epoch = len(rows) // size
    generator = torch.Generator().manual_seed(seed * 1000 + step // per_epoch)
    order = torch.randperm(len(rows), generator=generator)
    start = step % per_epoch * size
    return rows[order[start : start + size]]


def batches(
    rows: Tensor, num: int, *, first: int = 0, size: int = 16, seed: int = 5
) -> Iterator[Tensor]:
    """The batches of steps `first` to `num`."""
    for step in range(first, num):
        yield batch_at(rows, step, size, seed)
