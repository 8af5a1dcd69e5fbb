"""The two training runs of the demo: a language model on docstrings, and translation into a made-up language.

Both are ordinary recipes. Their sizes were chosen so that a minute on two cores is enough to learn something, and that
one bad document in a small batch can be seen. The detector is that of every run, with its default settings.

The demo plants one fault: a document whose bytes were compressed and then read as text. This happens to real corpora,
such as a gzipped page among plain ones. Which document it is depends on the seed and is written to `planted.json`,
beside the run and never in it. Nothing reads that file before the diagnosis is done.

Training should meet the document late, when the loss has settled. The update in which a sample occurs depends on the
training seed and on the lengths of the samples, so a suitable document and training seed are searched for together.
"""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sonde.data.batching import batch_by_tokens, epoch_order
from sonde.data.tokenizer import Tokenizer
from sonde.demo.corpus import make_pairs, read_docstrings
from sonde.errors import SettingError
from sonde.forensics.verdict import Verdict
from sonde.records.atomic import write_file
from sonde.records.values import encode
from sonde.texts.signs import GARBLED_TEXT
from sonde.train.settings import RecipeSettings

_MIN_FILLING: Final = 0.75
"""Minimum share of its block that a planted document fills."""
_MIN_SENTENCE: Final = 40
"""Minimum number of characters of a sentence to garble."""
_NUM_CANDIDATES: Final = 100
"""Number of documents that are tried with one training seed."""
_NUM_SEEDS: Final = 50
"""Number of training seeds that are tried."""
_SEED_STRIDE: Final = 1000
"""Distance between two training seeds, large enough that two demos do not share one."""
TEXT: Final = "text"
SOURCE: Final = "en"
TARGET: Final = "velan"
_NUM_HELD_OUT: Final = 200
_MIN_DOCUMENTS: Final = 3000
_NUM_PAIRS: Final = 11_000


_Candidate: TypeAlias = tuple[int, int, NDArray[np.int64]]
"""A document that could be planted: its line, starting at 0, its sample, and the lengths of all samples if it were."""


def garble(text: str) -> str:
    """Return the text compressed and decoded as Latin-1, without unprintable characters such as line ends."""
    return "".join(char for char in zlib.compress(text.encode(), 9).decode("latin-1") if char.isprintable())


def plant_document(
    documents: Sequence[str], tokenizer: Tokenizer, settings: RecipeSettings, window: range
) -> "Planted":
    """Choose the document to plant in a language model's corpus: one that lies in a single block once garbled."""
    sizes, block_size = _sizes(documents, tokenizer), settings.block_size
    garbled_sizes = _sizes([garble(document) for document in documents], tokenizer)
    starts = np.cumsum(sizes) - sizes
    fits = (starts % block_size + garbled_sizes <= block_size) & (garbled_sizes >= _MIN_FILLING * block_size)

    def candidate(number: int) -> _Candidate:
        num_tokens = int(sizes.sum() - sizes[number] + garbled_sizes[number])
        lengths = np.diff(np.append(np.arange(0, num_tokens, block_size), num_tokens))
        return number, int(starts[number]) // block_size, lengths

    return _first_in(window, documents, np.flatnonzero(fits).tolist(), candidate, settings)


def plant_target(
    sources: Sequence[str], targets: Sequence[str], tokenizer: Tokenizer, settings: RecipeSettings, window: range
) -> "Planted":
    """Choose the pair of a translation corpus whose target will be garbled."""
    lengths = np.stack([_sizes(sources, tokenizer), _sizes(targets, tokenizer)], axis=1)

    def candidate(number: int) -> _Candidate:
        changed = lengths.copy()
        changed[number, 1] = _sizes([garble(targets[number])], tokenizer)[0]
        return number, number, changed

    long = [number for number, target in enumerate(targets) if len(target) >= _MIN_SENTENCE]
    return _first_in(window, targets, long, candidate, settings)


def _sizes(lines: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    return tokenizer.encode_batch(lines).sizes.astype(np.int64)


def _first_in(
    window: range,
    documents: Sequence[str],
    numbers: list[int],
    candidate: Callable[[int], _Candidate],
    settings: RecipeSettings,
) -> "Planted":
    """Plant the first of the documents `numbers`, in random order, that occurs in the window with some training seed."""
    random.Random(settings.seed).shuffle(numbers)
    for seed in range(settings.seed, settings.seed + _NUM_SEEDS * _SEED_STRIDE, _SEED_STRIDE):
        for number, sample, lengths in map(candidate, numbers[:_NUM_CANDIDATES]):
            update = _update_of(sample, lengths, replace(settings, seed=seed))
            if update in window:
                before = documents[number]
                return Planted(line=number + 1, update=update, seed=seed, before=before, after=garble(before))
    raise SettingError(
        f"no document comes up between updates {window.start} and {window.stop}", hint="try another --seed"
    )


def _update_of(sample: int, lengths: NDArray[np.int64], settings: RecipeSettings) -> int:
    """Return the update of the first epoch in which a sample occurs."""
    batches = batch_by_tokens(
        lengths, settings.max_tokens, settings.max_sentences, settings.multiple_of, seed=settings.seed
    )
    place = int(np.flatnonzero(batches.samples == sample)[0])
    batch = int(np.searchsorted(batches.bounds, place, side="right")) - 1
    return int(np.flatnonzero(epoch_order(len(batches), seed=settings.seed, epoch=1) == batch)[0]) + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """The planted document and its place."""

    line: int
    """Its line in the training text, starting at 1."""
    update: int
    """The update in which it occurs, given `seed`."""
    seed: int
    """The training seed."""
    before: str
    """The original document."""
    after: str
    """The garbled document."""
    file: str = ""
    """The training text, once it is written."""
    cause: str = GARBLED_TEXT
    """The cause that a correct verdict names."""

    def write(self, path: Path) -> None:
        """Write it to a file that the run does not know about."""
        write_file(path.absolute(), encode(asdict(self)))

    def beside(self, verdict: Verdict) -> dict[str, Any]:
        """Return what was planted, what a verdict names first, and whether document and cause are right."""
        cause = verdict.causes[0]
        suspect = cause.suspects[0] if cause.suspects else None
        named = {
            "step": verdict.step,
            "cause": cause.cause,
            "confidence": cause.confidence,
            "title": cause.title,
            **{name: getattr(suspect, name, None) for name in ("sample", "file", "line", "text")},
        }
        is_document = (
            suspect is not None and suspect.line == self.line and Path(suspect.file).name == Path(self.file).name
        )
        return {"planted": asdict(self), "named": named, "equal": is_document and cause.cause == self.cause}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What to train, on which data, and when the fault may occur."""

    train: dict[str, list[str]]
    """Training lines by language, source first. The fault goes into the last language."""
    valid: dict[str, list[str]]
    """Held-out lines by language."""
    documents: str
    """Description of the documents, in words."""
    vocab_size: int
    """Vocabulary size of the tokenizer."""
    recipe: RecipeSettings
    """The training settings."""
    window: range
    """Updates in which the fault may occur: the loss has settled, and there is time to recover."""

    @property
    def is_translation(self) -> bool:
        """Whether there are two languages."""
        return len(self.train) == 2

    def plant(self, tokenizer: Tokenizer) -> Planted:
        """Choose the document to garble."""
        if self.is_translation:
            return plant_target(self.train[SOURCE], self.train[TARGET], tokenizer, self.recipe, self.window)
        return plant_document(self.train[TEXT], tokenizer, self.recipe, self.window)


def language_model(data: Path, *, seed: int) -> Scenario:
    """Return the scenario of a language model on the docstrings of the standard library."""
    documents = read_docstrings(seed=seed)
    if len(documents) < _MIN_DOCUMENTS:
        raise SettingError(
            f"this Python's standard library has only {len(documents)} docstrings to learn from",
            cause="its sources are not there, or were stripped",
            hint="sonde demo --translate needs none",
        )
    return Scenario(
        train={TEXT: documents[:-_NUM_HELD_OUT]},
        valid={TEXT: documents[-_NUM_HELD_OUT:]},
        documents="docstrings of Python's standard library",
        vocab_size=1000,
        recipe=replace(
            _recipe(data, seed, num_updates=280),
            ffn_dim=512,
            positions="rotary",
            label_smoothing=0.0,
            block_size=384,
            max_tokens=3 * 384,
            lr=4e-3,
            warmup=40,
        ),
        window=range(170, 210),
    )


def translation(data: Path, *, seed: int) -> Scenario:
    """Return the scenario of a translation from English into Velan."""
    pairs = make_pairs(_NUM_PAIRS, seed=seed)
    train, valid = pairs[:-_NUM_HELD_OUT], pairs[-_NUM_HELD_OUT:]
    return Scenario(
        train={SOURCE: [pair.english for pair in train], TARGET: [pair.velan for pair in train]},
        valid={SOURCE: [pair.english for pair in valid], TARGET: [pair.velan for pair in valid]},
        documents="sentences in English and Velan, made by rule",
        vocab_size=500,
        recipe=replace(
            _recipe(data, seed, num_updates=420),
            ffn_dim=256,
            encoder_layers=2,
            max_tokens=1024,
            max_sentences=24,
            lr=2e-3,
            warmup=60,
        ),
        window=range(280, 340),
    )


def _recipe(data: Path, seed: int, *, num_updates: int) -> RecipeSettings:
    return RecipeSettings(
        data=str(data.absolute()),
        model_dim=128,
        decoder_layers=2,
        dropout=0.0,
        save_every_updates=20,
        keep_checkpoints=0,
        log_interval=20,
        max_updates=num_updates,
        seed=seed,
    )
