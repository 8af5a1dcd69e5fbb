"""The two trainings that the demo knows: a language model on docstrings, and a translation from English into a made-up language.

Both are ordinary recipes. Sizes were chosen such that a minute on two cores is enough to learn something, and that one bad document in a batch of
few can be seen: the detector is the one of every run, with its own settings.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from sonde.data.tokenizer import Tokenizer
from sonde.demo.corpus import read_docstrings
from sonde.demo.plant import Planted, plant_document, plant_target
from sonde.demo.toy_language import make_pairs
from sonde.errors import SettingError
from sonde.train.recipe_settings import RecipeSettings

TEXT: Final = "text"
SOURCE: Final = "en"
TARGET: Final = "velan"
_NUM_HELD_OUT: Final = 200
_MIN_DOCUMENTS: Final = 3000
_NUM_PAIRS: Final = 11_000


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What is trained on what, and where the fault may come."""

    train: dict[str, list[str]]
    """Lines to train on, by language, source first; the fault goes into the last one."""
    valid: dict[str, list[str]]
    """Lines held out, likewise."""
    documents: str
    """What a line is, in words."""
    vocab_size: int
    """Pieces of the tokenizer."""
    recipe: RecipeSettings
    """How it is trained."""
    window: range
    """Updates in which the fault may come up: the loss has settled, and there is time to recover."""

    @property
    def is_translation(self) -> bool:
        """Two languages?"""
        return len(self.train) == 2

    def plant(self, tokenizer: Tokenizer) -> Planted:
        """Choose what is garbled."""
        if self.is_translation:
            return plant_target(self.train[SOURCE], self.train[TARGET], tokenizer, self.recipe, self.window)
        return plant_document(self.train[TEXT], tokenizer, self.recipe, self.window)


def language_model(data: Path, *, seed: int) -> Scenario:
    """Continue the docstrings of the standard library."""
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
    """Translate English into Velan."""
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
