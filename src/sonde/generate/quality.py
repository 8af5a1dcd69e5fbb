"""BLEU and chrF of translations, by sacrebleu (extra `eval`), so that numbers can be compared with published ones."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from sonde.errors import MissingDependency, SettingError


def check_can_measure() -> Any:
    """sacrebleu, imported; MissingDependency when it is not installed."""
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise MissingDependency("sacrebleu", needed_for="measuring BLEU and chrF", extra="eval") from error


def translation_quality(translations: Sequence[str], references: Sequence[str]) -> "Quality":
    """Corpus BLEU and chrF of detokenised text against one reference each."""
    if len(translations) != len(references) or not references:
        raise SettingError(
            f"there are {len(translations)} translations for {len(references)} references",
            hint="give one reference for each translation, and at least one",
        )
    sacrebleu = check_can_measure()
    bleu, chrf = sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF()
    return Quality(
        bleu=float(bleu.corpus_score(list(translations), [list(references)]).score),
        chrf=float(chrf.corpus_score(list(translations), [list(references)]).score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How near translations are to their references, 0 to 100."""

    bleu: float
    """Corpus BLEU."""

    chrf: float
    """Corpus chrF."""

    bleu_signature: str
    """How BLEU was computed, as sacrebleu says it: quote it beside the number."""

    chrf_signature: str
    """How chrF was computed."""
