"""Data for the fourth set of cases: a guide to old houses, read with a tokenizer of Hugging Face's,
conversations about it, sentences in two languages, scenes with a shape, speech, a table of flats.

Everything follows from a seed and is made in a moment.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

_KIND: Final = ("mill", "chapel", "town hall", "lighthouse", "tannery", "manor", "brewery", "inn",
                "school", "granary")  # fmt: skip
_PLACE: Final = ("Oakham", "Selby", "Dunwich", "Arlesford", "Kirkby", "Whitmoor", "Penrith",
                 "Stanhope", "Malton", "Corby")  # fmt: skip
_NAME: Final = ("Clara Voss", "the Abbot of Ely", "John Harding", "a guild of weavers",
                "Lady Marchmont", "two brothers from Ghent", "the railway company")  # fmt: skip
_FATE: Final = ("burned down", "was sold", "became a museum", "was raised by a storey",
                "lost its roof in a storm", "was used as a hospital", "stood empty")  # fmt: skip
_VISIT: Final = ("It can be seen on Sundays.", "The cellar is closed.", "There is a small garden.",
                 "The keeper has the key.", "Dogs must wait outside.", "")  # fmt: skip


def entry(dice: random.Random) -> str:
    """One entry of the guide."""
    built = dice.randint(1320, 1890)
    first = f"The {dice.choice(_KIND)} at {dice.choice(_PLACE)} was built in {built} by"
    second = f"{dice.choice(_NAME)} and {dice.choice(_FATE)} in {built + dice.randint(5, 90)}."
    return f"{first} {second} {dice.choice(_VISIT)}".strip()


def entries(num: int, seed: int = 41) -> list[str]:
    """Many entries of the guide."""
    dice = random.Random(seed)
    return [entry(dice) for _ in range(num)]


SPECIAL: Final = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>")
PAD: Final = 0
BEGIN: Final = 1
END: Final = 2
USER: Final = 3
ASSISTANT: Final = 4
SYSTEM: Final = 5


@cache
def tokenizer(size: int = 560, seed: int = 41) -> Any:
    """A byte-level BPE, trained on the guide."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(entries(400, seed), trainer)
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


def stream(num: int = 1200, seed: int = 41) -> Tensor:
    """The guide as one long row, an end after each entry."""
    numbers: list[int] = []
    for text in entries(num, seed):
        numbers += [*encode(text), END]
    return torch.tensor(numbers)


def windows(data: Tensor, step: int, size: int = 12, length: int = 33, seed: int = 1337) -> Tensor:
    """Rows from random places of a stream: those of a step, from 1."""
    generator = torch.Generator().manual_seed(seed * 10_007 + step)
    starts = torch.randint(0, len(data) - length, (size, 1), generator=generator)
    return data[starts + torch.arange(length)]


def filled(text: str, length: int) -> Tensor:
    """A text over and over, as a row of this length."""
    numbers = encode(text + " ")
    return torch.tensor((numbers * (length // len(numbers) + 1))[:length])


def shuffled(num: int, step: int, size: int, seed: int = 7) -> Tensor:
    """Which rows a step has, from 1: every row once an epoch, in another order each."""
    per_epoch = num // size
    generator = torch.Generator().manual_seed(seed * 7_919 + (step - 1) // per_epoch)
    start = (step - 1) % per_epoch * size
    return torch.randperm(num, generator=generator)[start : start + size]


def padded(rows: Sequence[Sequence[int]], value: int = PAD, *, left: bool = False) -> Tensor:
    """Rows of unlike length as one tensor."""
    length = max(map(len, rows))
    out = torch.full((len(rows), length), value)
    for number, row in enumerate(rows):
        if left:
            out[number, length - len(row) :] = torch.tensor(row)
        else:
            out[number, : len(row)] = torch.tensor(row)
    return out


class Turn(NamedTuple):
    """Who says what."""

    role: int
    text: str


def conversation(dice: random.Random, turns: int = 1) -> list[Turn]:
    """Somebody asks about old houses."""
    said: list[Turn] = []
    for _ in range(turns):
        kind = dice.choice(_KIND)
        place = dice.choice(_PLACE)
        asked = (
            f"Who built the {kind} at {place}, and when?",
            f"Tell me about the {kind} at {place}, please.",
            f"I am {dice.randint(100, 999)} miles from {place}. Is there a {kind}?",
        )
        year = dice.randint(1320, 1890)
        answer = f"The {kind} at {place} was built in {year} by {dice.choice(_NAME)}."
        said += [Turn(USER, dice.choice(asked)), Turn(ASSISTANT, answer)]
    return said


def conversations(num: int, turns: int = 1, seed: int = 43) -> list[list[Turn]]:
    """Many conversations."""
    dice = random.Random(seed)
    return [conversation(dice, turns) for _ in range(num)]


def templated(turns: Sequence[Turn], *, ends: bool = True) -> tuple[list[int], list[int]]:
    """A conversation as numbers, and who says each of them; a turn ends with an end."""
    numbers = [BEGIN]
    roles = [SYSTEM]
    for turn in turns:
        said = [*encode(turn.text), END] if ends else encode(turn.text)
        numbers += [turn.role, *said]
        roles += [SYSTEM, *[turn.role] * len(said)]
    return numbers, roles


_GERMAN: Final = dict(zip(
    (*_KIND, *_FATE),
    ("die Mühle", "die Kapelle", "das Rathaus", "der Leuchtturm", "die Gerberei", "das Gut",
     "die Brauerei", "das Gasthaus", "die Schule", "der Speicher", "brannte ab",
     "wurde verkauft", "wurde ein Museum", "wurde erhöht", "verlor im Sturm das Dach",
     "diente als Spital", "stand leer"),
    strict=True,
))  # fmt: skip


def translation(dice: random.Random) -> tuple[str, str]:
    """A sentence in English and in German."""
    kind = dice.choice(_KIND)
    place = dice.choice(_PLACE)
    fate = dice.choice(_FATE)
    year = dice.randint(1700, 1950)
    german = f"Im Jahr {year}: {_GERMAN[kind]} von {place} {_GERMAN[fate]}."
    return f"In {year} the {kind} at {place} {fate}.", german


def translations(num: int, seed: int = 47) -> list[tuple[str, str]]:
    """Many sentences in two languages."""
    dice = random.Random(seed)
    return [translation(dice) for _ in range(num)]


SHAPES: Final = 4
SIDE: Final = 20


class Scenes(NamedTuple):
    """Colour pictures with a shape, where it is, and what it is."""

    pictures: Tensor
    labels: Tensor
    boxes: Tensor
    """Left, top, right, bottom: from 0 to 1."""
    masks: Tensor
    """0 is the ground, 1 to 4 a shape."""


def scenes(num: int, seed: int = 53, noise: float = 0.25) -> Scenes:
    """A disc, a frame, a block or a cross on a sloping ground."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, SHAPES, (num,), generator=generator)
    half = 3 + 2.5 * torch.rand(num, 2, generator=generator)
    centre = half + (SIDE - 2 * half) * torch.rand(num, 2, generator=generator)
    ramp = torch.arange(SIDE).float() + 0.5
    across = (ramp.view(1, 1, -1) - centre[:, 0].view(-1, 1, 1)) / half[:, 0].view(-1, 1, 1)
    down = (ramp.view(1, -1, 1) - centre[:, 1].view(-1, 1, 1)) / half[:, 1].view(-1, 1, 1)
    far = torch.maximum(across.abs(), down.abs())
    inside = torch.stack([
        across.square() + down.square() < 1,
        (far < 1) & (far > 0.5),
        far < 1,
        (far < 1) & (torch.minimum(across.abs(), down.abs()) < 0.4),
    ])[labels, torch.arange(num)]  # fmt: skip
    colour = 0.6 + torch.rand(num, 3, 1, 1, generator=generator)
    ground = (ramp / SIDE).view(1, 1, 1, -1) * torch.randn(num, 3, 1, 1, generator=generator) * 0.4
    pictures = ground + inside.unsqueeze(1) * colour
    pictures = pictures + noise * torch.randn(num, 3, SIDE, SIDE, generator=generator)
    boxes = torch.cat((centre - half, centre + half), 1) / SIDE
    return Scenes(pictures, labels, boxes, inside.long() * (labels + 1).view(-1, 1, 1))


PHONES: Final = 10
"""The phones of `speech` are 1 to 10; 0 is the blank."""
MELS: Final = 12


class Speech(NamedTuple):
    """Utterances with their transcripts."""

    frames: Tensor
    num_frames: Tensor
    phones: Tensor
    num_phones: Tensor


def speech(step: int, size: int = 16, *, longest: int = 6) -> Speech:
    """Each phone lasts four to six frames and is unlike the one before: the batch of a step."""
    dice = random.Random(90_000 + step)
    voices = torch.randn(PHONES + 1, MELS, generator=torch.Generator().manual_seed(8))
    rows: list[list[int]] = []
    said: list[list[int]] = []
    for _ in range(size):
        phones = [dice.randint(1, PHONES)]
        for _ in range(dice.randint(2, longest - 1)):
            phones.append((phones[-1] + dice.randint(0, PHONES - 2)) % PHONES + 1)
        said.append(phones)
        rows.append([phone for phone in phones for _ in range(dice.randint(4, 6))])
    clean = voices[padded(rows)]
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(step))
    return Speech(
        clean + 0.9 * noise,
        torch.tensor([len(row) for row in rows]),
        padded(said),
        torch.tensor([len(row) for row in said]),
    )


COLUMNS: Final = 9


def flats(num: int, seed: int = 59) -> tuple[Tensor, Tensor]:
    """Nine columns of an advertisement, and the rent."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(num, COLUMNS, generator=generator)
    if_large = torch.where(columns[:, 2] > 0, 0.6 * columns[:, 1], 0.0)
    rent = columns[:, 0] + if_large + 0.5 * columns[:, 3].abs()
    return columns, rent + 0.15 * torch.randn(num, generator=generator)


PLACES: Final = 9


class Corridors:
    """Many walks in a corridor at once: the right end pays 1, every step costs a little."""

    def __init__(self, num: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.at = torch.randint(0, PLACES - 1, (num,), generator=self.generator)

    def step(self, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Go right or left: where one was, the pay, where one is, whether it is over."""
        before = self.at.clone()
        slips = torch.rand(len(before), generator=self.generator) < 0.1
        way = torch.where(slips, -1, 2 * right.long() - 1)
        after = (before + way).clamp(0, PLACES - 1)
        over = after == PLACES - 1
        paid = over.float() - 0.02
        fresh = torch.randint(0, PLACES - 1, before.shape, generator=self.generator)
        self.at = torch.where(over, fresh, after)
        return before, paid, after, over
