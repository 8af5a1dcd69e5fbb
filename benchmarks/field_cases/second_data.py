"""Data for the second set of cases: reports as bytes or words, pictures, series, pairs.

Everything follows from a seed; nothing takes longer than a fraction of a second.
"""

import random
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

_PORTS: Final = (
    "Bergen", "Lisbon", "Gdansk", "Cork", "Antwerp", "Tallinn", "Bilbao", "Riga", "Hull", "Cadiz",
)  # fmt: skip
_SHIPS: Final = (
    "The ferry", "A freighter", "The tug", "The survey vessel", "A trawler", "The tanker",
    "The pilot boat", "A schooner", "The dredger", "The icebreaker",
)  # fmt: skip
_MOVES: Final = (
    "left", "reached", "turned back to", "waited outside", "was towed to", "loaded in",
    "reported from", "passed", "anchored off", "refuelled at",
)  # fmt: skip
_WEATHER: Final = (
    "in light wind", "during a gale", "in dense fog", "under a clear sky", "with heavy swell",
    "in steady rain", "after the squall", "with the ebb tide",
)  # fmt: skip
_CARGO: Final = (
    "carrying timber", "with forty passengers", "empty", "with a cargo of salt", "carrying mail",
    "with engine trouble", "two hours late", "ahead of schedule", "under new command",
)  # fmt: skip
PHRASES: Final = (_SHIPS, _MOVES, _PORTS, _WEATHER, _CARGO)

_WORDS: Final = {word for phrases in PHRASES for phrase in phrases for word in phrase.split()}
NAMES: Final = ("<pad>", "<end>", "<mask>", ".", *sorted(_WORDS))
NUM_WORDS: Final = len(NAMES)
_ID: Final = {name: number for number, name in enumerate(NAMES)}
PADDING: Final = 0
ENDING: Final = 1
MASKED: Final = 2
STOP: Final = 3


def report(dice: random.Random) -> str:
    """What a harbour master writes down."""
    parts = [dice.choice(_SHIPS), dice.choice(_MOVES), dice.choice(_PORTS), dice.choice(_WEATHER)]
    if dice.random() < 0.5:
        parts.append(dice.choice(_CARGO))
    return " ".join(parts) + "."


def reports(num: int, seed: int = 11) -> list[str]:
    """Many reports."""
    dice = random.Random(seed)
    return [report(dice) for _ in range(num)]


def to_bytes(text: str) -> list[int]:
    """Text as bytes: a vocabulary of 256."""
    return list(text.encode("utf-8", "replace"))


def from_bytes(tokens: list[int]) -> str:
    """Bytes as text."""
    return bytes(token for token in tokens if 0 < token < 256).decode("utf-8", "replace")


def to_words(text: str) -> list[int]:
    """Text as words: a small vocabulary."""
    return [_ID[word] for word in text.replace(".", " .").split()]


def from_words(tokens: list[int]) -> str:
    """Words as text."""
    return " ".join(NAMES[token] for token in tokens if PADDING < token < NUM_WORDS)


def byte_stream(num: int = 3000, seed: int = 11) -> Tensor:
    """One long text."""
    return torch.tensor(to_bytes(" ".join(reports(num, seed))))


def word_rows(num: int = 1600, length: int = 20, seed: int = 11) -> Tensor:
    """A report each row, its end, then padding."""
    rows = torch.full((num, length), PADDING)
    for row, text in zip(rows, reports(num, seed), strict=True):
        tokens = [*to_words(text)[: length - 1], ENDING]
        row[: len(tokens)] = torch.tensor(tokens)
    return rows


def window(stream: Tensor, step: int, *, size: int, block: int, seed: int = 3) -> Tensor:
    """Rows cut at random places of a stream, as `get_batch` does: those of a step, from 0."""
    generator = torch.Generator().manual_seed(seed * 100_003 + step)
    starts = torch.randint(0, len(stream) - block - 1, (size,), generator=generator)
    return torch.stack([stream[start : start + block + 1] for start in starts.tolist()])


def epoch_order(num: int, step: int, size: int, seed: int = 3) -> Tensor:
    """Which rows the batch of a step has: every row once an epoch."""
    per_epoch = num // size
    generator = torch.Generator().manual_seed(seed * 7919 + step // per_epoch)
    start = step % per_epoch * size
    return torch.randperm(num, generator=generator)[start : start + size]


def stripes(
    num: int = 960, num_classes: int = 5, *, noise: float = 0.6, side: int = 12, seed: int = 7
) -> tuple[Tensor, Tensor]:
    """Colour pictures with stripes; the class is the direction and width of the stripes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, num_classes, (num,), generator=generator)
    ramp = torch.arange(side).float()
    across = ramp.view(1, side).expand(side, side)
    down = ramp.view(side, 1).expand(side, side)
    waves = torch.stack([across, down, across + down, across - down, 2.3 * across])[:num_classes]
    phase = torch.rand(num, 1, 1, generator=generator) * 6.28
    shown = torch.sin(waves[labels] * 1.1 + phase).unsqueeze(1).expand(-1, 3, -1, -1)
    return shown + noise * torch.randn(num, 3, side, side, generator=generator), labels


def waves(num: int, length: int = 24, seed: int = 13) -> Tensor:
    """Series: a sum of two sines with a little noise, one a row."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(length).float()
    speed = 0.2 + 0.6 * torch.rand(num, 2, 1, generator=generator)
    phase = 6.28 * torch.rand(num, 2, 1, generator=generator)
    clean = torch.sin(speed * time + phase).sum(1)
    return clean + 0.05 * torch.randn(num, length, generator=generator)


def houses(step: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """A table of twelve columns and a price: the batch of a step."""
    generator = torch.Generator().manual_seed(50_000 + step)
    columns = torch.randn(size, 12, generator=generator)
    price = columns[:, :3].sum(1) + 0.7 * torch.relu(columns[:, 4]) - 0.4 * columns[:, 5] ** 2
    return columns, price + 0.1 * torch.randn(size, generator=generator)


DIGITS: Final = 12
"""The tokens of `spelled`: 0 pads, 1 begins, 2 ends, 3 to 12 are digits."""


def spelled(step: int, size: int = 16, longest: int = 9) -> tuple[Tensor, Tensor]:
    """Digits and the same backwards, each with padding: a translation, the batch of a step."""
    dice = random.Random(90_000 + step)
    source = torch.zeros(size, longest + 1, dtype=torch.long)
    target = torch.zeros(size, longest + 2, dtype=torch.long)
    for row in range(size):
        digits = [dice.randint(3, DIGITS) for _ in range(dice.randint(3, longest))]
        source[row, : len(digits)] = torch.tensor(digits)
        written = [1, *reversed(digits), 2]
        target[row, : len(written)] = torch.tensor(written)
    return source, target


def tagged(num: int = 1200, length: int = 20, seed: int = 11) -> tuple[Tensor, Tensor]:
    """Words and their parts of speech: 0 pads, 1 to 5 say which phrase a word is of, 6 a stop."""
    words = torch.full((num, length), PADDING)
    tags = torch.zeros(num, length, dtype=torch.long)
    dice = random.Random(seed)
    for row in range(num):
        place = 0
        for kind, phrases in enumerate(PHRASES, 1):
            if kind == 5 and dice.random() < 0.5:
                continue
            for word in dice.choice(phrases).split():
                words[row, place] = _ID[word]
                tags[row, place] = kind
                place += 1
        words[row, place] = STOP
        tags[row, place] = 6
    return words, tags


def spoiled_at(
    onset: int, draw: Callable[[int], Tensor], spoil: Callable[[Tensor], Tensor]
) -> Callable[[int], Tensor]:
    """The batches of `draw`; that of update `onset` is spoiled."""

    def drawn(step: int) -> Tensor:
        batch = draw(step)
        return spoil(batch.clone()) if step == onset - 1 else batch

    return drawn
