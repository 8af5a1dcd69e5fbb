"""Data for the fifth set of cases: recipes, read with a tokenizer that falls back on bytes, in two
languages and as conversations; numerals, cells under a microscope, tones, tunes with their notes,
the demand for power, used cars, what people think of films.

Everything follows from a seed and is made in a moment.
"""

import json
import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

_DISH: Final = {
    "lentil soup": "une soupe aux lentilles", "onion tart": "une tarte aux oignons",
    "apple cake": "un gateau aux pommes", "fish stew": "un ragout de poisson",
    "pumpkin bread": "un pain de courge", "bean salad": "une salade de haricots",
    "rice pudding": "un riz au lait", "mushroom pie": "une tourte aux champignons",
}  # fmt: skip
_VERB: Final = {
    "simmer": "faites mijoter", "bake": "faites cuire", "stir": "remuez", "soak": "faites tremper",
    "roast": "faites rotir", "boil": "faites bouillir",
}  # fmt: skip
_THING: Final = {
    "flour": "de farine", "butter": "de beurre", "red lentils": "de lentilles rouges",
    "carrots": "de carottes", "cream": "de creme", "dried plums": "de pruneaux",
    "barley": "d'orge", "walnuts": "de noix", "potatoes": "de pommes de terre",
}  # fmt: skip
_TIP: Final = {
    "Serve it warm.": "Servez chaud.", "Let it rest overnight.": "Laissez reposer une nuit.",
    "Add salt at the end.": "Salez a la fin.", "Keep the lid on.": "Gardez le couvercle.",
    "It keeps for a week.": "Il se garde une semaine.", "": "",
}  # fmt: skip


def recipe_pair(dice: random.Random) -> tuple[str, str]:
    """A recipe in English and in French."""
    dish = dice.choice(list(_DISH))
    verb = dice.choice(list(_VERB))
    thing = dice.choice(list(_THING))
    other = dice.choice(list(_THING))
    tip = dice.choice(list(_TIP))
    guests = dice.randint(2, 9)
    grams = dice.randint(1, 18) * 25
    minutes = dice.randint(2, 18) * 5
    english = (
        f"For {dish} for {guests}, {verb} {grams} g of {thing} with {other} "
        f"for {minutes} minutes. {tip}"
    )
    french = (
        f"Pour {_DISH[dish]} pour {guests}, {_VERB[verb]} {grams} g {_THING[thing]} avec un peu "
        f"{_THING[other]} pendant {minutes} minutes. {_TIP[tip]}"
    )
    return english.strip(), french.strip()


def recipe_pairs(num: int, seed: int = 71) -> list[tuple[str, str]]:
    """Many recipes in two languages."""
    dice = random.Random(seed)
    return [recipe_pair(dice) for _ in range(num)]


def recipes(num: int, seed: int = 71) -> list[str]:
    """Many recipes in English."""
    return [english for english, _ in recipe_pairs(num, seed)]


SPECIAL: Final = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<mask>", "<unk>")
PAD: Final = 0
BEGIN: Final = 1
END: Final = 2
OPEN: Final = 3
CLOSE: Final = 4
MASK: Final = 5


@cache
def tokenizer(size: int = 420) -> Any:
    """A BPE of pieces, in the way of SentencePiece: what it does not know, it writes as bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    first = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split("\n", "isolated"),
    ])  # fmt: skip
    first.pre_tokenizer = pieces
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), show_progress=False
    )
    texts = [text for pair in recipe_pairs(300) for text in pair]
    first.train_from_iterator([*texts, "user\nassistant\nsystem\n?'!:"], trainer)
    learnt = json.loads(first.to_str())["model"]
    names: dict[str, int] = dict(learnt["vocab"])
    for byte in range(256):
        names[f"<0x{byte:02X}>"] = len(names)
    merges = [(left, right) for left, right in learnt["merges"]]
    made = Tokenizer(models.BPE(names, merges, byte_fallback=True))
    made.pre_tokenizer = pieces
    made.add_special_tokens(list(SPECIAL))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def num_tokens() -> int:
    """The size of the vocabulary."""
    return int(tokenizer().get_vocab_size())


def encode(text: str) -> list[int]:
    """Text as numbers."""
    return list(tokenizer().encode(text).ids)


def decode(numbers: Sequence[int]) -> str:
    """Numbers as text."""
    return str(tokenizer().decode(list(map(int, numbers)), skip_special_tokens=True))


def corpus(num: int = 1500, seed: int = 71) -> Tensor:
    """Recipes as one long row, an end after each."""
    numbers: list[int] = []
    for text in recipes(num, seed):
        numbers += [*encode(text), END]
    return torch.tensor(numbers)


def chunk(data: Tensor, step: int, size: int = 12, length: int = 33, seed: int = 99) -> Tensor:
    """Rows from random places: those of a step, from 1."""
    generator = torch.Generator().manual_seed(seed * 20_011 + step)
    starts = torch.randint(0, len(data) - length, (size, 1), generator=generator)
    return data[starts + torch.arange(length)]


def drawn(num: int, step: int, size: int, seed: int = 3) -> Tensor:
    """Which rows a step has, from 1: every row once an epoch, in another order each."""
    per_epoch = num // size
    generator = torch.Generator().manual_seed(seed * 6_007 + (step - 1) // per_epoch)
    start = (step - 1) % per_epoch * size
    return torch.randperm(num, generator=generator)[start : start + size]


def pad(rows: Sequence[Sequence[int]], value: int = PAD, *, left: bool = False) -> Tensor:
    """Rows of unlike length as one tensor."""
    length = max(map(len, rows))
    out = torch.full((len(rows), length), value)
    for number, row in enumerate(rows):
        place = slice(length - len(row), length) if left else slice(0, len(row))
        out[number, place] = torch.tensor(row)
    return out


def chat(dice: random.Random) -> tuple[str, str]:
    """What a cook asks, and what an assistant answers."""
    dish = dice.choice(list(_DISH))
    thing = dice.choice(list(_THING))
    minutes = dice.randint(2, 18) * 5
    grams = dice.randint(1, 18) * 25
    asked = dice.choice((
        f"How long does {dish} take with {thing}?", f"I have {grams} g of {thing}. What now?",
        f"Tell me about {dish}, please.",
    ))  # fmt: skip
    told = dice.choice((
        f"Take {grams} g of {thing} and wait {minutes} minutes for {dish}.",
        f"For {dish} you need {thing} and {minutes} minutes.",
    ))  # fmt: skip
    return asked, told


def chats(num: int, seed: int = 73) -> list[tuple[str, str]]:
    """Many questions with answers."""
    dice = random.Random(seed)
    return [chat(dice) for _ in range(num)]


def chatml(asked: str, told: str) -> tuple[list[int], int]:
    """A conversation as numbers, and where the answer begins."""
    prompt = [OPEN, *encode(f"user\n{asked}"), CLOSE, OPEN, *encode("assistant\n")]
    return [*prompt, *encode(told), CLOSE], len(prompt)


_SEGMENTS: Final = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg",
                    "abcdfg")  # fmt: skip
_STROKES: Final = {"a": (0, 1, 0, 6), "b": (1, 5, 5, 6), "c": (6, 10, 5, 6), "d": (10, 11, 0, 6),
                   "e": (6, 10, 0, 1), "f": (1, 5, 0, 1), "g": (5, 6, 0, 6)}  # fmt: skip


def numerals(num: int, seed: int = 79, noise: float = 0.35) -> tuple[Tensor, Tensor]:
    """Numerals of seven strokes on 16 by 16 points, somewhere, and which they are."""
    generator = torch.Generator().manual_seed(seed)
    shapes = torch.zeros(10, 11, 6)
    for number, strokes in enumerate(_SEGMENTS):
        for stroke in strokes:
            top, bottom, left, right = _STROKES[stroke]
            shapes[number, top:bottom, left:right] = 1.0
    labels = torch.randint(0, 10, (num,), generator=generator)
    places = torch.stack((
        torch.randint(0, 6, (num,), generator=generator),
        torch.randint(0, 11, (num,), generator=generator),
    ), 1)  # fmt: skip
    bright = 0.7 + 0.6 * torch.rand(num, generator=generator)
    pictures = noise * torch.randn(num, 1, 16, 16, generator=generator)
    for row, (label, place) in enumerate(zip(labels.tolist(), places.tolist(), strict=True)):
        down, across = place
        pictures[row, 0, down : down + 11, across : across + 6] += bright[row] * shapes[label]
    return pictures, labels


def cells(num: int, seed: int = 83, side: int = 24) -> tuple[Tensor, Tensor]:
    """Dim discs in noise, and which points are inside of one."""
    generator = torch.Generator().manual_seed(seed)
    ramp = torch.arange(side).float()
    inside = torch.zeros(num, side, side, dtype=torch.bool)
    for _ in range(3):
        centre = side * torch.rand(num, 2, 1, 1, generator=generator)
        radius = 2 + 3 * torch.rand(num, 1, 1, generator=generator)
        down = (ramp.view(1, -1, 1) - centre[:, 0]).square()
        across = (ramp.view(1, 1, -1) - centre[:, 1]).square()
        inside |= down + across < radius.square()
    ground = 0.3 * torch.randn(num, 1, 1, generator=generator)
    noise = 0.5 * torch.randn(num, side, side, generator=generator)
    return (inside + ground + noise).unsqueeze(1), inside.float().unsqueeze(1)


class Tune(NamedTuple):
    """Spectra of a batch with the notes that were played."""

    frames: Tensor
    num_frames: Tensor
    notes: Tensor
    num_notes: Tensor


NOTES: Final = 8
BANDS: Final = 14


def tunes(numbers: Sequence[int], longest: int = 6) -> Tune:
    """The tunes of these numbers: each note, from 1 on, sounds for four to six frames."""
    voices = torch.randn(NOTES + 1, BANDS, generator=torch.Generator().manual_seed(17))
    frames: list[list[int]] = []
    played: list[list[int]] = []
    for number in numbers:
        dice = random.Random(40_000 + number)
        notes = [dice.randint(1, NOTES)]
        for _ in range(dice.randint(1, longest - 1)):
            notes.append((notes[-1] + dice.randint(0, NOTES - 2)) % NOTES + 1)
        played.append(notes)
        frames.append([note for note in notes for _ in range(dice.randint(4, 6))])
    clean = voices[pad(frames)]
    generator = torch.Generator().manual_seed(int(numbers[0]) + 1)
    return Tune(
        clean + 0.8 * torch.randn(clean.shape, generator=generator),
        torch.tensor(list(map(len, frames))),
        pad(played),
        torch.tensor(list(map(len, played))),
    )


def tones(num: int, seed: int = 89, length: int = 256) -> tuple[Tensor, Tensor]:
    """Waves of one of six pitches with overtones, in noise, and which it is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, (num,), generator=generator)
    pitch = (0.06 + 0.035 * labels).unsqueeze(1) * (
        1 + 0.02 * torch.randn(num, 1, generator=generator)
    )
    time = torch.arange(length).float() + length * torch.rand(num, 1, generator=generator)
    waves = torch.sin(2 * math.pi * pitch * time) + 0.4 * torch.sin(4 * math.pi * pitch * time)
    loud = 0.5 + torch.rand(num, 1, generator=generator)
    return loud * waves + 0.4 * torch.randn(num, length, generator=generator), labels


def demand(num: int, seed: int = 97, length: int = 60) -> Tensor:
    """Hours of power in many houses: days, a trend of their own, and noise."""
    generator = torch.Generator().manual_seed(seed)
    hours = torch.arange(length).float() + torch.randint(0, 24, (num, 1), generator=generator)
    size = 0.5 + torch.rand(num, 1, generator=generator)
    phase = 0.6 * torch.randn(num, 1, generator=generator)
    daily = torch.sin(2 * math.pi * hours / 24 + phase)
    morning = torch.sin(4 * math.pi * hours / 24 + phase).clamp(min=0)
    drift = 0.01 * torch.randn(num, 1, generator=generator) * torch.arange(length)
    noise = 0.15 * torch.randn(num, length, generator=generator)
    return size * (daily + 0.7 * morning) + drift + noise


BRANDS: Final = 12


def cars(num: int, seed: int = 101) -> tuple[Tensor, Tensor, Tensor]:
    """Brand, six measured columns, and the price in thousands."""
    generator = torch.Generator().manual_seed(seed)
    brands = torch.randint(0, BRANDS, (num,), generator=generator)
    columns = torch.randn(num, 6, generator=generator)
    worth = torch.linspace(-1.5, 2.0, BRANDS)[brands]
    price = worth + columns[:, 0] * (1 + 0.3 * worth) - columns[:, 1].abs() + 0.5 * columns[:, 2]
    return brands, columns, price + 0.2 * torch.randn(num, generator=generator)


PEOPLE: Final = 40
FILMS: Final = 30


def opinions(num: int, seed: int = 103) -> tuple[Tensor, Tensor, Tensor]:
    """Who saw which film, and how many stars too many or too few it got."""
    generator = torch.Generator().manual_seed(seed)
    tastes = torch.randn(PEOPLE, 4, generator=generator)
    kinds = torch.randn(FILMS, 4, generator=generator)
    people = torch.randint(0, PEOPLE, (num,), generator=generator)
    films = torch.randint(0, FILMS, (num,), generator=generator)
    stars = (tastes[people] * kinds[films]).sum(1) / 2
    return people, films, stars + 0.3 * torch.randn(num, generator=generator)
