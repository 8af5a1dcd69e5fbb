"""The demo's folder, its narrator, and its two training runs: a language model on docstrings, and
translation into a made-up language.

    sonde-demo/
      .sonde-demo     marks the folder as a demo's, so that the next demo may overwrite it
      corpus/         the texts, one document per line, and the tokenizer
      planted.json    what was planted, for the end of the demo
      data/           the prepared data
      run/            the run
      run-of-64/      a second one, with 64 samples in a batch
      run-untouched/  with --heal: an undisturbed run
      training.log    output of the training, if there is no terminal
      report.html     the report
      verdict.json    what was planted and what the diagnosis named

Both runs are ordinary recipes. Their sizes were chosen so that a minute on two cores is enough to
learn something, and that one bad document in a small batch can be seen. The detector is that of
every run, with its default settings.

The demo plants one fault: a document whose bytes were compressed and then read as text. This
happens to real corpora, such as a gzipped page among plain ones. Which document it is depends on
the seed and is written to `planted.json`, beside the run and never in it. Nothing reads that file
before the diagnosis is done.

Training should meet the document late, when the loss has settled. The update in which a sample
occurs depends on the training seed and on the lengths of all samples, so a suitable document is
searched for. No torch: `sonde demo` must start without it to say so.
"""

import random
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from sonde.data.batching import batch_by_tokens, epoch_order
from sonde.data.tokenizer import Tokenizer
from sonde.demo.corpus import make_pairs, read_docstrings
from sonde.errors import SettingError
from sonde.forensics.verdict import Verdict
from sonde.records import disk
from sonde.records.files import write_file
from sonde.spikes.decoding import DecodedSample
from sonde.texts.signs import GARBLED_TEXT
from sonde.train.settings import RecipeSettings

_MIN_FILLING: Final = 0.75
"""Minimum share of its block that a planted document fills."""
_MIN_SENTENCE: Final = 40
"""Minimum number of characters of a sentence to garble."""
NUM_HELD_OUT: Final = 200
"""Number of documents that are held out for validation: the last ones."""
_MIN_DOCUMENTS: Final = 3000
_NUM_PAIRS: Final = 11_000


class Narrator(Protocol):
    """Receives the title of every act and what was found in it."""

    def act(self, title: str) -> None:
        """Called when an act begins."""

    def tell(self, text: str) -> None:
        """Called when something was found or done."""

    def show(self, sample: DecodedSample, *, calm_loss: float | None) -> None:
        """Called with the text of a sample; tokens well above `calm_loss` are the odd ones."""


def claim(folder: Path) -> None:
    """Claim a new or empty folder, or that of an earlier demo, whose files are removed first."""
    marker = folder / ".sonde-demo"
    if folder.exists() and not marker.is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(
            f"{folder} exists and no demo of sonde made it",
            hint="name another folder with --out, or remove it yourself",
        )
    for name in ("corpus", "data", "run", "run-of-64", "run-untouched", "run-resumed"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (
        "planted.json",
        "training.log",
        "report.html",
        "verdict.json",
        "checkpoint.pt",
    ):
        (folder / name).unlink(missing_ok=True)
    disk.make_directories(folder)
    write_file(marker.absolute(), b"made by `sonde demo`, which may start over in this folder\n")


def open_log(folder: Path) -> TextIO:
    """Open the file that receives what trainings print where there is no terminal."""
    return (folder / "training.log").open("a", encoding="utf-8")


def garble(text: str) -> str:
    """Return the text compressed and decoded as Latin-1, without unprintable characters such as
    line ends.
    """
    return "".join(
        char for char in zlib.compress(text.encode(), 9).decode("latin-1") if char.isprintable()
    )


def plant(
    train: Mapping[str, Sequence[str]],
    tokenizer: Tokenizer,
    settings: RecipeSettings,
    window: range,
) -> "Planted":
    """Choose the document to garble: the first of the last language, in random order, that training
    meets in the window.

    In the corpus of a language model, it lies in a single block once it is garbled.
    """
    *sources, documents = train.values()
    *source_sizes, sizes = (_sizes(lines, tokenizer) for lines in train.values())
    garbled_sizes = _sizes([garble(document) for document in documents], tokenizer)
    starts = np.cumsum(sizes) - sizes
    block = settings.block_size
    if sources:
        fits = np.array([len(document) >= _MIN_SENTENCE for document in documents])
    else:
        fits = (starts % block + garbled_sizes <= block) & (garbled_sizes >= _MIN_FILLING * block)
    numbers: list[int] = np.flatnonzero(fits).tolist()
    random.Random(settings.seed).shuffle(numbers)
    for number in numbers:
        changed = sizes.copy()
        changed[number] = garbled_sizes[number]
        if sources:
            sample = number
            lengths = np.stack([*source_sizes, changed], axis=1)
        else:
            sample = int(starts[number]) // block
            num_tokens = int(changed.sum())
            lengths = np.diff(np.append(np.arange(0, num_tokens, block), num_tokens))
        update = _update_of(sample, lengths, settings)
        if update in window:
            before = documents[number]
            return Planted(line=number + 1, update=update, before=before, after=garble(before))
    sentence = f"no document comes up between steps {window.start} and {window.stop}"
    raise SettingError(sentence, hint="try another --seed")


def _sizes(lines: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    return tokenizer.encode_batch(lines).sizes.astype(np.int64)


def _update_of(sample: int, lengths: NDArray[np.int64], settings: RecipeSettings) -> int:
    """Return the update of the first epoch in which a sample occurs."""
    batches = batch_by_tokens(
        lengths,
        settings.max_tokens,
        settings.max_sentences,
        settings.multiple_of,
        seed=settings.seed,
    )
    order = epoch_order(len(batches), seed=settings.seed, epoch=1)
    return next(
        update for update, batch in enumerate(order.tolist(), 1) if sample in batches[batch]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """The planted document and its place."""

    line: int
    """Its line in the training text, starting at 1."""
    update: int
    """The update in which it occurs."""
    before: str
    """The original document."""
    after: str
    """The garbled document."""
    file: str = ""
    """The training text, once it is written."""
    cause: str = GARBLED_TEXT
    """The cause that a correct verdict names."""

    def beside(self, verdict: Verdict) -> dict[str, Any]:
        """Return what was planted, what a verdict names first, and whether document and cause are
        right.
        """
        cause = verdict.causes[0]
        suspect = cause.suspects[0] if cause.suspects else None
        named = {name: getattr(cause, name) for name in ("cause", "confidence", "title")}
        named |= {name: getattr(suspect, name, None) for name in ("sample", "file", "line", "text")}
        is_document = (named["line"], Path(named["file"] or "").name) == (
            self.line,
            Path(self.file).name,
        )
        is_equal = is_document and cause.cause == self.cause
        return {
            "planted": asdict(self),
            "named": {"step": verdict.step, **named},
            "equal": is_equal,
        }


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to train, on which data, and when the fault may occur."""

    texts: dict[str, list[str]]
    """All lines by language, source first. The fault goes into the last language."""
    documents: str
    """Description of the documents, in words."""
    vocab_size: int
    """Vocabulary size of the tokenizer."""
    recipe: RecipeSettings
    """The training settings."""
    window: range
    """Updates in which the fault may occur: the loss has settled, and there is time to recover."""


def language_model(data: Path, *, seed: int) -> Scenario:
    """Return the scenario of a language model on the docstrings of the standard library."""
    documents = read_docstrings(seed=seed)
    if len(documents) < _MIN_DOCUMENTS:
        sentence = (
            f"this Python's standard library has only {len(documents)} docstrings to learn from"
        )
        raise SettingError(sentence, hint="sonde demo --translate needs none")
    recipe = _recipe(
        data,
        seed,
        max_updates=280,
        ffn_dim=512,
        positions="rotary",
        label_smoothing=0.0,
        block_size=384,
        max_tokens=3 * 384,
        lr=4e-3,
        warmup=40,
    )
    described = "docstrings of Python's standard library"
    return Scenario(
        {"text": documents}, described, vocab_size=1000, recipe=recipe, window=range(170, 210)
    )


def translation(data: Path, *, seed: int) -> Scenario:
    """Return the scenario of a translation from English into Velan."""
    english, velan = map(list, zip(*make_pairs(_NUM_PAIRS, seed=seed), strict=True))
    recipe = _recipe(
        data,
        seed,
        max_updates=420,
        ffn_dim=256,
        encoder_layers=2,
        max_tokens=1024,
        max_sentences=24,
        lr=1e-3,
        warmup=60,
    )
    described = "sentences in English and Velan, made by rule"
    return Scenario(
        {"en": english, "velan": velan},
        described,
        vocab_size=500,
        recipe=recipe,
        window=range(260, 390),
    )


def _recipe(data: Path, seed: int, **settings: Any) -> RecipeSettings:
    return RecipeSettings(
        data=str(data.absolute()),
        model_dim=128,
        decoder_layers=2,
        dropout=0.0,
        save_every_updates=20,
        keep_checkpoints=0,
        log_interval=20,
        seed=seed,
        **settings,
    )
