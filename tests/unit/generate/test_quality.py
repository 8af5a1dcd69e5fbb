"""BLEU and chrF are sacrebleu's."""

import importlib
import importlib.util
import os

import pytest

from sonde.errors import MissingDependency, SettingError
from sonde.generate.translation import translation_quality

needs_sacrebleu = pytest.mark.skipif(
    importlib.util.find_spec("sacrebleu") is None and os.environ.get("CI") != "true",
    reason="sacrebleu is not installed",
)


@needs_sacrebleu
def test_a_perfect_translation_scores_100_and_a_worse_one_less() -> None:
    references = ["two dogs run over the green grass", "a man reads a book in the park"]
    perfect = translation_quality(references, references)
    worse = translation_quality(
        ["two dogs run over green grass", "a man reads in the park"], references
    )
    assert perfect.bleu == pytest.approx(100)
    assert perfect.chrf == pytest.approx(100)
    assert 0 < worse.bleu < 100
    assert 0 < worse.chrf < 100
    assert "tok:13a" in worse.bleu_signature
    assert "nc:6" in worse.chrf_signature


def test_lists_of_different_length_and_empty_ones_are_refused() -> None:
    with pytest.raises(SettingError, match="1 translations for 2 references"):
        translation_quality(["a"], ["a", "b"])
    with pytest.raises(SettingError, match="0 translations"):
        translation_quality([], [])


def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingDependency, match=r"sonde\[eval\]"):
        translation_quality(["a"], ["a"])
