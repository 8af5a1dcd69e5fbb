"""Translate and score with a trained run: recipe, newest checkpoint and tokenizer come from the
run.

    translator = open_translator("runs/m30k")
    translator.translate(["Ein Hund läuft."])[0].text

A language model continues text instead. The data directory is the one that the run recorded, or
another one with the same tokenizer; any other is refused.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from sonde.callbacks.base import Callback, Order
from sonde.callbacks.context import Context
from sonde.checkpoint.weights import load_weights
from sonde.data.datasets import open_pairs
from sonde.data.directory import DataDirectory
from sonde.data.tokenizer import Tokenizer
from sonde.errors import DamagedFile, SettingError, import_extra
from sonde.generate.settings import SearchSettings
from sonde.generate.translation import (
    BATCH_TOKENS,
    PairScore,
    Translation,
    score,
    translate,
    translation_quality,
)
from sonde.models.transformer import Transformer
from sonde.records.manifest import read_manifest
from sonde.train.recipe import VALID, Pieces, build_task, fingerprints, has_source
from sonde.train.settings import RecipeSettings, settings_of_run


def open_translator(
    run: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> "Translator":
    """Open the model of a run with the weights of its newest valid checkpoint, or of `checkpoint`.

    `data` is the current location of the data directory, if it has moved.
    """
    directory = Path(run)
    settings = settings_of_run(directory)
    place = Path(data) if data is not None else Path(settings.data)
    if not place.is_dir():
        raise SettingError(
            f"the data of {directory} is not at {place}",
            cause="the tokenizer is needed to turn text into tokens and back",
            hint="say where it is now with `data` (--data)",
        )
    prepared = DataDirectory(place)
    recorded = read_manifest(directory).data.get("tokenizer")
    found = fingerprints(prepared)["tokenizer"]
    if recorded not in (None, found):
        raise DamagedFile(
            f"{place} was made with another tokenizer than {directory}",
            cause=f"the run says {str(recorded)[:12]}…, the data {found[:12]}…",
        )
    tokenizer = prepared.tokenizer()
    task = build_task(settings, prepared, tokenizer, device=device)
    step = load_weights(checkpoint or directory, task.model)
    assert isinstance(task.model, Transformer)
    return Translator(task.model, tokenizer, prepared.source_tokenizer() or tokenizer, step)


def quality_callback(settings: RecipeSettings, pieces: Pieces) -> Callback:
    """Return the callback for `sonde train --evaluate bleu`: it adds BLEU and chrF of the held-out
    text, on rank 0.
    """
    import_extra("sacrebleu", needed_for="measuring BLEU and chrF", extra="eval")
    if pieces.valid_data is None or not has_source(pieces.directory):
        raise SettingError(
            "BLEU needs a valid split of two languages",
            cause=f"{settings.data} has {', '.join(pieces.directory.splits)}",
            hint="`sonde prepare --valid FILE.SRC FILE.TGT` makes one",
        )
    assert isinstance(pieces.task.model, Transformer)
    source_tokenizer = pieces.directory.source_tokenizer() or pieces.tokenizer
    translator = Translator(pieces.task.model, pieces.tokenizer, source_tokenizer)
    pairs = open_pairs(pieces.directory, VALID)
    rows = [
        pairs[number]
        for number in range(min(len(pairs), settings.evaluate_sentences or len(pairs)))
    ]
    sources = [
        source_tokenizer.decode(row.source[:-1].tolist()) for row in rows if row.source is not None
    ]
    references = [pieces.tokenizer.decode(row.target[:-1].tolist()) for row in rows]
    search = translator.search(
        beam=settings.evaluate_beam, length_penalty=settings.evaluate_length_penalty
    )

    def measure() -> dict[str, float]:
        quality = translation_quality(
            [translation.text for translation in translator.translate(sources, search)], references
        )
        return {"bleu": quality.bleu, "chrf": quality.chrf}

    return QualityCallback(measure)


class QualityCallback(Callback):
    """Adds what `measure` returns to every evaluation, on rank 0."""

    order: ClassVar[Order] = Order.EVALUATE
    asks: ClassVar[bool] = False
    critical: ClassVar[bool] = True  # a run that stops by BLEU must not continue without it

    def __init__(self, measure: Callable[[], dict[str, float]]) -> None:
        self._measure = measure

    def on_evaluation_end(self, context: Context) -> None:
        """Translate and measure."""
        if context.rank == 0:
            context.add_metrics(self._measure())


@dataclass(slots=True)
class Translator:
    """A trained model and its tokenizer: text in, text out."""

    model: Transformer
    """The model. A search puts it into evaluation mode."""
    tokenizer: Tokenizer
    """The tokenizer of the target."""
    source_tokenizer: Tokenizer
    """The tokenizer of the source, which is that of the target if they share a vocabulary."""
    step: int = 0
    """Number of updates that the weights were trained for."""

    def search(self, **settings: Any) -> SearchSettings:
        """Return search settings with the special ids of this tokenizer, such as `search(beam=5,
        n_best=5)`.
        """
        specials = self.tokenizer.specials
        return SearchSettings(
            **({"eos": specials.eos, "pad": specials.pad, "unk": specials.unk} | settings)
        )

    def translate(
        self, texts: Sequence[str], settings: SearchSettings | None = None, **options: Any
    ) -> list[Translation]:
        """Return the best translations of each text, in order. `options` are those of
        `sonde.generate.translate`.
        """
        found = settings or self.search()
        return translate(
            self.model, self.source_tokenizer, texts, found, targets=self.tokenizer, **options
        )

    def continued(self, prompt: str, tokens: Sequence[int]) -> str:
        """Return a prompt and the tokens that a language model generated for it, as one text."""
        return self.tokenizer.decode(
            [*self.source_tokenizer.encode_batch([prompt]).tokens[:-1].tolist(), *tokens]
        )

    def score(
        self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = BATCH_TOKENS
    ) -> list[PairScore]:
        """Return how likely the second text of each pair is, given the first."""
        return score(
            self.model,
            self.source_tokenizer,
            pairs,
            self.search(),
            targets=self.tokenizer,
            batch_tokens=batch_tokens,
        )
