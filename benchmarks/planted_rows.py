"""Single bad rows of twenty kinds in four trainings: where they are planted, and what every sample
lost at every step.
"""

import gzip
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.planted_data import PlantedData
from benchmarks.planted_tasks import translated_sentences
from benchmarks.planted_texts import (
    FOREIGN,
    _binary,
    _encoded,
    _mojibake,
    _noise,
    _scrambled,
    _shifted,
)
from numpy.typing import NDArray
from typing_extensions import override

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import PairDataset
from sonde.demo.corpus import read_docstrings
from sonde.train.settings import RecipeSettings, settings_from

SHARED: Final = Path("/work/shared/data")
"""Real text that is no part of the project; corpora from there are left out where it is not."""
_SIZES: Final[dict[str, Any]] = {
    "model_dim": 64,
    "num_heads": 2,
    "ffn_dim": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.1,
    "label_smoothing": 0.0,
    "lr": 3e-3,
    "schedule": "inverse_sqrt",
    "warmup": 100,
    "multiple_of": 1,
    "validate_every_epochs": None,
    "save_every_epochs": None,
    "log_interval": 100_000,
    "max_tokens": None,
}
_LATIN: Final = (
    "Spanish",
    "Italian",
    "Polish",
    "Finnish",
    "Portuguese",
    "Swedish",
    "Dutch",
    "Turkish",
)
_WORDS: Final = (
    "load",
    "init",
    "buffer",
    "request",
    "worker",
    "index",
    "session",
    "cache",
    "socket",
    "queue",
    "frame",
)

Way = Callable[[str, random.Random], str]


def docstrings() -> tuple[list[str], ...]:
    """Language model: docstrings of Python's library."""
    return (read_docstrings(seed=7),)


def plays() -> tuple[list[str], ...]:
    """Language model: Tiny Shakespeare, a speech a line."""
    text = (SHARED / "tinyshakespeare.txt").read_text(encoding="utf-8")
    return ([" ".join(speech.split()) for speech in text.split("\n\n") if speech.strip()],)


def captions() -> tuple[list[str], ...]:
    """Translation: Multi30k, English to German."""
    folder = SHARED / "multi30k"
    sides = [
        gzip.decompress((folder / f"train.{side}.gz").read_bytes()).decode()
        for side in ("en", "de")
    ]
    return tuple(side.splitlines()[:12_000] for side in sides)


def sentences() -> tuple[list[str], ...]:
    """Translation: English to German by rule."""
    pairs = translated_sentences(8_000, seed=7)
    return [english for english, _ in pairs], [other for _, other in pairs]


CORPORA: Final[dict[str, Callable[[], tuple[list[str], ...]]]] = {
    "docstrings": docstrings,
    "plays": plays,
    "captions": captions,
    "sentences": sentences,
}


def prepare_corpus(
    name: str, folder: Path, *, batch: int, seed: int, num_epochs: int = 2
) -> RecipeSettings:
    """The corpus in tokens, and a training on it in batches of so many rows."""
    texts = dict(zip(("en", "de"), CORPORA[name](), strict=False))
    paths = {}
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in texts.items():
        paths[language] = folder / f"text.{language}"
        paths[language].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    prepare(PrepareSettings(splits={"train": paths}, out=folder / "data", vocab_size=2000))
    changed = {
        "data": str(folder / "data"),
        "max_epochs": num_epochs,
        "max_sentences": batch,
        "seed": seed,
    }
    return settings_from(_SIZES, {**changed, "block_size": 64})


def plant_rows(settings: RecipeSettings, *, share: float, seed: int) -> dict[int, str]:
    """Rewrite a share of the samples, each in one of the kinds; returns which is of what kind."""
    data = PlantedData(settings, Path(settings.data))
    generator = random.Random(f"rows-{seed}")
    is_pair = isinstance(data.dataset, PairDataset)
    kinds = [*KINDS, *(PAIR_KINDS if is_pair else ())]
    # Rows of a few tokens can hardly be told apart by anybody.
    long_enough = [row for row in range(len(data.dataset)) if len(data.dataset[row].target) >= 8]
    chosen = generator.sample(long_enough, int(share * len(data.dataset)))
    found = {}
    for place, row in enumerate(chosen):
        kind = kinds[(place + seed) % len(kinds)]
        found[row] = kind
        if kind in KINDS:
            data.put_text(row, KINDS[kind](data.text(row), generator))
        elif kind == "copied source":
            source = data.dataset[row].source
            assert source is not None
            data.put_tokens(row, [int(token) for token in source[:-1]])
        else:
            other = generator.choice(long_enough)
            data.put_tokens(row, [int(token) for token in data.dataset[other].target[:-1]])
    data.write()
    return found


def _foreign(names: tuple[str, ...]) -> Way:
    def way(_: str, generator: random.Random) -> str:
        words = FOREIGN[generator.choice(names)].split()
        first = generator.randrange(len(words) // 2)
        return " ".join(words[first:])

    return way


def _markup(_: str, generator: random.Random) -> str:
    row = '<div class="{0}-item"><a href="/{0}/{1}.html">{0}</a><br/></div>'
    return " ".join(
        row.format(generator.choice(_WORDS), generator.randrange(99)) for _ in range(12)
    )


def _code(_: str, generator: random.Random) -> str:
    row = "for (int i = 0; i < {0}->len; i++) {{ if (!{1}[i]) return -{2}; }} "
    return "".join(
        row.format(*generator.sample(_WORDS, 2), generator.randrange(99)) for _ in range(8)
    )


def _table(_: str, generator: random.Random) -> str:
    return " | ".join(f"{generator.uniform(0, 1000):.2f}" for _ in range(60))


def _log_lines(_: str, generator: random.Random) -> str:
    row = "2024-{:02d}-{:02d} {:02d}:{:02d}:17,{:03d} WARN [{}] pid={} "
    numbers = (
        generator.randrange(1, 12),
        generator.randrange(1, 28),
        generator.randrange(24),
        generator.randrange(60),
    )
    return "".join(
        row.format(
            *numbers, generator.randrange(999), generator.choice(_WORDS), generator.randrange(9999)
        )
        for _ in range(8)
    )


def _links(_: str, generator: random.Random) -> str:
    return " ".join(
        f"https://{generator.choice(_WORDS)}.example.org/?q={generator.randrange(10**9):x}"
        for _ in range(12)
    )


def _shuffled_words(text: str, generator: random.Random) -> str:
    words = text.split()
    generator.shuffle(words)
    return " ".join(words)


KINDS: Final[dict[str, Way]] = {
    "keyboard noise": _noise,
    "scrambled letters": _scrambled,
    "wrong encoding": _mojibake,
    "binary": _binary,
    "base 64": _encoded,
    "shifted letters": _shifted,
    "other language": _foreign(_LATIN),
    "other script": _foreign(("Russian", "Greek")),
    "markup": _markup,
    "code": _code,
    "table": _table,
    "log lines": _log_lines,
    "links": _links,
    "shouting": lambda text, _: text.upper(),
    "one word again and again": lambda text, generator: (
        f"{generator.choice(text.split() or ['the'])} " * 80
    ),
    "shuffled words": _shuffled_words,
    "backwards": lambda text, _: text[::-1],
    "digits": lambda _, generator: str(generator.randrange(10**199, 10**200)),
    "initials": lambda text, _: " ".join(f"{word[0]}." for word in text.split()) * 4,
    "spaced letters": lambda text, _: " ".join(text),
}
PAIR_KINDS: Final = ("copied source", "another's target")


class LossTrace(Callback):
    """What every sample lost at every step."""

    asks = False

    def __init__(self) -> None:
        self._steps: list[tuple[int, list[int], Any, Any]] = []

    @override
    def on_step_end(self, context: Context) -> None:
        """Note the losses."""
        output = context.outputs[0]
        ids = [number for _, number in output.sample_ids]
        self._steps.append(
            (context.step, ids, output.sample_losses.numpy(), output.token_counts.numpy())
        )

    def arrays(self) -> "Trace":
        """All of it."""
        return Trace(
            steps=np.concatenate([np.full(len(ids), step) for step, ids, _, _ in self._steps]),
            samples=np.concatenate([ids for _, ids, _, _ in self._steps]),
            losses=np.concatenate([losses for _, _, losses, _ in self._steps]),
            lengths=np.concatenate([lengths for _, _, _, lengths in self._steps]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A row a sample and step, in order of time."""

    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    losses: NDArray[np.float32]
    lengths: NDArray[np.int64]

    def exceeds_neighbours(self, row: int, *, bad: NDArray[np.bool_], number: int = 512) -> bool:
        """Is the loss above that of the `number` good rows nearest in time?"""
        near = np.flatnonzero(~bad[max(0, row - number) : row + number]) + max(0, row - number)
        nearest = near[np.argsort(np.abs(near - row), kind="stable")[:number]]
        return bool(self.losses[row] > self.losses[nearest].max())
