"""The texts of a batch and of its corpus: what suspicious rows say, part by part, and what the corpus usually says.

A row of packed documents is judged by the document in it that lost most; a pair by its target and by its source, each against its own side of
the corpus.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.forensics.losses import SampleLoss
from sonde.forensics.seams import Corpus, Name, Row
from sonde.forensics.verdict import FOREIGN_LANGUAGE, REPETITION, Suspect
from sonde.texts.corpus_profile import CorpusProfile, profile_of
from sonde.texts.text_signs import Reading, TextSpread, is_like_the_source, measure_text, read_text, spread_of

_NUM_TEXTS: Final = 300
"""Samples of the corpus that it is judged by."""
_MIN_TOKENS: Final = 12
"""A shorter part of a row is judged together with the rest of it."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a corpus: its profile and the spread of its measures."""

    profile: CorpusProfile
    spread: TextSpread


@final
class SampleTexts:
    """The texts of some rows, by their names, beside those of their corpus."""

    def __init__(self, corpus: Corpus, rows: Mapping[Name, Row]) -> None:
        self.corpus = corpus
        self._rows = rows
        self._sides: dict[str, Side] = {}

    def row(self, sample: SampleLoss) -> Row:
        """The row of a sample."""
        return self._rows[sample.sample_id]

    def read(self, sample: SampleLoss) -> Reading:
        """What the text of a sample is."""
        row = self.row(sample)
        if row.source is not None:
            return self._read_pair(row.target, row.source)
        return self._read_side("target", self.worst_part(sample))

    def worst_part(self, sample: SampleLoss) -> Sequence[int]:
        """The tokens of the document in a sample that lost most; all of them when it is one document, or hardly more."""
        row, losses = self.row(sample), sample.token_losses
        parts = [part for part in self.corpus.parts(row) if part[1] - part[0] >= _MIN_TOKENS]
        if not parts or losses is None:
            return row.target
        start, end = max(parts, key=lambda part: sum(losses[part[0] : part[1]]) / (part[1] - part[0]))
        return row.target[start:end]

    def as_suspect(self, sample: SampleLoss, rank: int) -> Suspect:
        """A sample as the verdict names it, with the place and the beginning of its text."""
        return self.corpus.suspect(self.row(sample), sample, rank)

    def _read_pair(self, target: Sequence[int], source: Sequence[int]) -> Reading:
        reading = self._read_side("target", target)
        if reading.cause == REPETITION:
            return reading
        own, of_source = self._side("target").profile, self._side("source").profile
        if is_like_the_source(self.corpus.decode(target), own, of_source):
            told = "the target reads like the source's language, not like its own"
            return Reading(cause=FOREIGN_LANGUAGE, strength=max(0.8, reading.strength), evidence=(told,))
        source_reading = self._read_side("source", source)
        if source_reading.cause and source_reading.strength > reading.strength:
            return Reading(
                cause=source_reading.cause,
                strength=source_reading.strength,
                evidence=("it is the source:", *source_reading.evidence),
            )
        return reading

    def _read_side(self, name: str, tokens: Sequence[int]) -> Reading:
        side, text = self._side(name), self.corpus.decode(tokens)
        return read_text(text, tokens, measure_text(text, tokens, side.profile), side.profile, side.spread)

    def _side(self, name: str) -> Side:
        if name not in self._sides:
            rows = [one.target if name == "target" else one.source or () for one in self.corpus.some(_NUM_TEXTS)]
            texts = [self.corpus.decode(row) for row in rows]
            profile = profile_of(texts)
            measures = [measure_text(text, row, profile, is_own=True) for text, row in zip(texts, rows, strict=True)]
            self._sides[name] = Side(profile=profile, spread=spread_of(measures))
        return self._sides[name]
