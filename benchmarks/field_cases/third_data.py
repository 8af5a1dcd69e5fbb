"""Data for the third set of cases: recipes in pieces of words, glyphs, loads of a power grid,
sounds, ratings, graphs, dates, points. Everything follows from a seed and is made in a moment.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

_DO: Final = ("Chop", "Peel", "Rinse", "Slice", "Grate", "Boil", "Crush", "Toast", "Soak", "Roast")
_MANY: Final = ("two", "three", "a handful of", "half of the", "four", "some", "all the", "twelve")
_WHAT: Final = (
    "onions", "carrots", "lentils", "almonds", "potatoes", "tomatoes", "chestnuts", "leeks",
    "mushrooms", "apricots", "beans", "walnuts",
)  # fmt: skip
_HOW: Final = ("finely", "with care", "in cold water", "without the skin", "on a dry board")
_THEN: Final = ("fry them in butter", "leave them to rest", "stir in the cream", "add the broth",
                "cover the pan", "season with salt", "fold in the flour")  # fmt: skip
_LONG: Final = ("for ten minutes", "until golden", "over low heat", "overnight", "for an hour")


def recipe(dice: random.Random) -> str:
    """One step of a recipe."""
    first = f"{dice.choice(_DO)} {dice.choice(_MANY)} {dice.choice(_WHAT)} {dice.choice(_HOW)}"
    if dice.random() < 0.3:
        return f"{first}."
    return f"{first}, then {dice.choice(_THEN)} {dice.choice(_LONG)}."


def recipes(num: int, seed: int = 31) -> list[str]:
    """Many steps of recipes."""
    dice = random.Random(seed)
    return [recipe(dice) for _ in range(num)]


PAD: Final = 0
BEGIN: Final = 1
END: Final = 2
_FIRST_BYTE: Final = 3


class Pieces:
    """A tokenizer of one's own: the commonest pieces of words, and bytes for the rest."""

    def __init__(self, texts: Sequence[str], num: int = 140) -> None:
        counts: Counter[str] = Counter()
        for word in re.findall(r" ?\w+", " ".join(texts[:300])):
            for size in (2, 3, 4, 6):
                for start in range(len(word) - size + 1):
                    counts[word[start : start + size]] += size - 1
        self.pieces = [piece for piece, _ in counts.most_common(num)]
        self.number = {piece: _FIRST_BYTE + 256 + place for place, piece in enumerate(self.pieces)}
        longest = sorted(self.pieces, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest), "."]), re.DOTALL)

    def __len__(self) -> int:
        return _FIRST_BYTE + 256 + len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Text as numbers."""
        found: list[int] = []
        for piece in self._pattern.findall(text):
            if piece in self.number:
                found.append(self.number[piece])
            else:
                found += [_FIRST_BYTE + byte for byte in piece.encode()]
        return found

    def decode(self, numbers: list[int]) -> str:
        """Numbers as text."""
        made = bytearray()
        for number in numbers:
            if number >= _FIRST_BYTE + 256:
                made += self.pieces[number - _FIRST_BYTE - 256].encode()
            elif number >= _FIRST_BYTE:
                made.append(number - _FIRST_BYTE)
        return made.decode("utf-8", "replace")


class Corpus(NamedTuple):
    """Recipes as numbers."""

    pieces: Pieces
    stream: Tensor
    """One recipe after the other, an end after each."""


def corpus(num: int = 1500, seed: int = 31) -> Corpus:
    """Read recipes into one long row."""
    texts = recipes(num, seed)
    pieces = Pieces(texts)
    numbers: list[int] = []
    for text in texts:
        numbers += [*pieces.encode(text), END]
    return Corpus(pieces, torch.tensor(numbers))


def cut(stream: Tensor, step: int, size: int, length: int, seed: int = 17) -> Tensor:
    """Rows from random places of a stream: those of a step, from 1."""
    generator = torch.Generator().manual_seed(seed * 65_537 + step)
    starts = torch.randint(0, len(stream) - length, (size, 1), generator=generator)
    return stream[starts + torch.arange(length)]


def fitted(numbers: list[int], length: int) -> Tensor:
    """Numbers as a row of exactly this length: repeated if too short."""
    while len(numbers) < length:
        numbers = numbers + numbers
    return torch.tensor(numbers[:length])


def padded(rows: Sequence[Sequence[int]], length: int = 0, value: int = PAD) -> Tensor:
    """Rows of unlike length as one tensor."""
    length = length or max(map(len, rows))
    out = torch.full((len(rows), length), value)
    for number, row in enumerate(rows):
        out[number, : min(len(row), length)] = torch.tensor(row[:length])
    return out


def drawn(num: int, step: int, size: int, seed: int = 17) -> Tensor:
    """Which rows a step has, from 1: every row once an epoch, in another order each."""
    per_epoch = num // size
    generator = torch.Generator().manual_seed(seed * 9_973 + (step - 1) // per_epoch)
    start = (step - 1) % per_epoch * size
    return torch.randperm(num, generator=generator)[start : start + size]


KINDS: Final = 6


def glyphs(
    num: int = 960, *, side: int = 16, noise: float = 0.35, seed: int = 23
) -> tuple[Tensor, Tensor]:
    """Grey pictures of a disc, a ring, a square, a plus, a cross or a bar, somewhere."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, KINDS, (num,), generator=generator)
    centre = side / 2 + (torch.rand(num, 2, 1, 1, generator=generator) - 0.5) * side / 4
    ramp = torch.arange(side).float()
    across = ramp.view(1, 1, side) - centre[:, 0]
    down = ramp.view(1, side, 1) - centre[:, 1]
    far = (across.square() + down.square()).sqrt()
    box = torch.maximum(across.abs(), down.abs())
    thin = side / 10
    size = side / 4
    shapes = torch.stack([
        far < size,
        (far < size + 1) & (far > size - 1.5),
        box < size,
        (torch.minimum(across.abs(), down.abs()) < thin) & (box < size + 1),
        ((across.abs() - down.abs()).abs() < thin) & (box < size + 1),
        (down.abs() < thin) & (across.abs() < size + 2),
    ])  # fmt: skip
    shown = shapes[labels, torch.arange(num)].float()
    shown = shown + noise * torch.randn(num, side, side, generator=generator)
    return shown.unsqueeze(1), labels


def loads(num: int, length: int = 36, seed: int = 29) -> Tensor:
    """The load of a grid, hour by hour: a day's curve, a level, and noise that lingers."""
    generator = torch.Generator().manual_seed(seed)
    hours = torch.arange(length).float() + 24 * torch.rand(num, 1, generator=generator)
    level = 0.5 * torch.randn(num, 1, generator=generator)
    height = 0.7 + 0.3 * torch.rand(num, 1, generator=generator)
    noise = 0.06 * torch.randn(num, length, generator=generator).cumsum(1)
    return level + height * torch.sin(hours * 6.2832 / 24) + 0.3 * torch.cos(hours * 1.05) + noise


SYMBOLS: Final = 8
"""Sounds of `sounds` are 1 to 8; 0 is the blank."""
BANDS: Final = 10


class Sounds(NamedTuple):
    """A batch of sounds with their transcripts."""

    frames: Tensor
    num_frames: Tensor
    symbols: Tensor
    num_symbols: Tensor


def sounds(step: int, size: int = 16, *, first: int = 1) -> Sounds:
    """Each symbol is heard for three or four frames: the batch of a step."""
    dice = random.Random(70_000 + step)
    templates = torch.randn(SYMBOLS, BANDS, generator=torch.Generator().manual_seed(5))
    frames = torch.zeros(size, 28, BANDS)
    symbols = torch.zeros(size, 7, dtype=torch.long)
    num_frames = torch.zeros(size, dtype=torch.long)
    num_symbols = torch.zeros(size, dtype=torch.long)
    for row in range(size):
        said = [dice.randrange(SYMBOLS) for _ in range(dice.randint(3, 7))]
        heard: list[int] = []
        for symbol in said:
            heard += [symbol] * dice.randint(3, 4)
        symbols[row, : len(said)] = torch.tensor(said) + first
        frames[row, : len(heard)] = templates[heard]
        num_frames[row] = len(heard)
        num_symbols[row] = len(said)
    noise = torch.randn(frames.shape, generator=torch.Generator().manual_seed(step))
    return Sounds(frames + 0.3 * noise, num_frames, symbols, num_symbols)


USERS: Final = 80
ITEMS: Final = 120


def ratings(num: int = 4000, seed: int = 37) -> tuple[Tensor, Tensor, Tensor]:
    """Who rated what, and with how many stars."""
    generator = torch.Generator().manual_seed(seed)
    tastes = torch.randn(USERS, 3, generator=generator)
    traits = torch.randn(ITEMS, 3, generator=generator)
    users = torch.randint(0, USERS, (num,), generator=generator)
    items = torch.randint(0, ITEMS, (num,), generator=generator)
    liking = (tastes[users] * traits[items]).sum(1) + 0.3 * torch.randn(num, generator=generator)
    return users, items, (3 + liking).round().clamp(1, 5)


NODES: Final = 10
FEATURES: Final = 6


class Graphs(NamedTuple):
    """A batch of graphs as dense matrices, with a number to predict for each."""

    nodes: Tensor
    adjacency: Tensor
    target: Tensor


def graphs(step: int, size: int = 24, num_nodes: int = NODES, share: float = 0.35) -> Graphs:
    """The number is what the nodes' neighbours have on average, weighted by their own features."""
    generator = torch.Generator().manual_seed(300_000 + step)
    nodes = torch.randn(size, num_nodes, FEATURES, generator=generator)
    upper = (torch.rand(size, num_nodes, num_nodes, generator=generator) < share).float().triu(1)
    ring = torch.roll(torch.eye(num_nodes), 1, dims=1)
    adjacency = ((upper + upper.transpose(1, 2) + ring + ring.t()) > 0).float()
    mean = adjacency @ nodes / adjacency.sum(2, keepdim=True)
    target = (torch.relu(nodes[..., 0]) * torch.sign(mean[..., 1])).mean(1) + mean[..., 2].mean(1)
    return Graphs(nodes, adjacency, 2 * target)


_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
LETTERS: Final = "\0\1\2 -0123456789abcdefghijklmnopqrstuvwxyz"
"""What dates are written with: the first three pad, begin and end."""


def written(text: str, *, ends: bool = False) -> list[int]:
    """A date as numbers, between a begin and an end if it is a target."""
    numbers = [LETTERS.index(letter) for letter in text]
    return [BEGIN, *numbers, END] if ends else numbers


def read_letters(numbers: list[int]) -> str:
    """Numbers as a date."""
    return "".join(LETTERS[number] for number in numbers if 2 < number < len(LETTERS))


def date_pair(dice: random.Random) -> tuple[str, str]:
    """A date as people write it, and as machines do."""
    day = dice.randint(1, 28)
    month = dice.randint(1, 12)
    year = dice.randint(1950, 2029)
    name = _MONTHS[month - 1]
    styles = (f"{day} {name} {year}", f"{name} {day} {year}", f"{day} {name[:3]} {year}")
    return dice.choice(styles), f"{year}-{month:02d}-{day:02d}"


def dates(step: int, size: int = 24) -> tuple[Tensor, Tensor]:
    """Dates to translate, padded: the batch of a step."""
    dice = random.Random(110_000 + step)
    pairs = [date_pair(dice) for _ in range(size)]
    source = padded([written(pair[0]) for pair in pairs], 17)
    return source, padded([written(pair[1], ends=True) for pair in pairs], 12)


def points(step: int, size: int = 64) -> Tensor:
    """Points on two half circles, as one draws them to test a generator."""
    generator = torch.Generator().manual_seed(500_000 + step)
    angle = 3.1416 * torch.rand(size, generator=generator)
    upper = torch.rand(size, generator=generator) < 0.5
    across = torch.where(upper, angle.cos(), 1 - angle.cos())
    down = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    noise = 0.05 * torch.randn(size, 2, generator=generator)
    return torch.stack([across, down], 1) + noise


def clicks(step: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """Ten columns of a log, and whether somebody clicked."""
    generator = torch.Generator().manual_seed(700_000 + step)
    columns = torch.randn(size, 10, generator=generator)
    score = 1.5 * columns[:, 0] - columns[:, 1] * columns[:, 2] + 0.5 * columns[:, 3].abs() - 0.3
    chance = torch.sigmoid(2 * score)
    return columns, (torch.rand(size, generator=generator) < chance).float()


STATES: Final = 8
ACTIONS: Final = 4


def rewards(states: Tensor, actions: Tensor, noise: Tensor) -> Tensor:
    """What an action brings in a state: one of four is best."""
    table = torch.rand(STATES, ACTIONS, generator=torch.Generator().manual_seed(3))
    best = torch.arange(STATES) * 3 % ACTIONS
    table[torch.arange(STATES), best] += 1.0
    return table[states, actions] + 0.3 * noise
