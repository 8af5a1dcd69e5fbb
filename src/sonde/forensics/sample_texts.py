"""The texts of a batch and of its corpus: what suspicious rows say, part by part, and what the corpus usually says.

A row of packed documents is judged by the document in it that lost most; a pair by its target and by its source, each against its own side of
the corpus.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.blocks import BlockDataset
from sonde.data.pairs import PairDataset
from sonde.data.token_file import TokenFile
from sonde.forensics.losses import SampleLoss
from sonde.forensics.verdict import FOREIGN_LANGUAGE, REPETITION, Suspect
from sonde.spikes.data_files import describe_dataset
from sonde.spikes.decoding import SampleDecoder
from sonde.spikes.spike_log import RankedSample
from sonde.texts.corpus_profile import CorpusProfile, profile_of
from sonde.texts.text_signs import Reading, TextSpread, is_like_the_source, measure_text, read_text, spread_of

_NUM_TEXTS: Final = 300
"""Samples of the corpus that it is judged by."""
_MIN_TOKENS: Final = 12
"""A shorter part of a row is judged together with the rest of it."""
_MAX_TEXT: Final = 400

Dataset = BlockDataset | PairDataset


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a corpus: its profile and the spread of its measures."""

    profile: CorpusProfile
    spread: TextSpread


@final
class SampleTexts:
    """The texts of one dataset."""

    def __init__(self, dataset: Dataset, decode: Callable[[Sequence[int]], str]) -> None:
        self.dataset = dataset
        self._decode = decode
        self._sides: dict[str, Side] = {}

    @property
    def corpus(self) -> NDArray[np.generic]:
        """All target tokens, one after the other."""
        tokens: TokenFile = self.dataset.target if isinstance(self.dataset, PairDataset) else self.dataset.tokens
        return tokens.flat

    def target(self, sample: int) -> list[int]:
        """The tokens that a sample has to predict."""
        return _plain(self.dataset[sample].target)

    def whole(self, sample: int) -> list[int]:
        """All tokens of a sample: its source, if it has one, and its target."""
        found = self.dataset[sample]
        return [*([] if found.source is None else _plain(found.source)), *_plain(found.target)]

    def read(self, sample: SampleLoss) -> Reading:
        """What the text of a sample is."""
        number = int(sample.sample_id[1])
        found = self.dataset[number]
        if found.source is not None:
            return self._read_pair(_plain(found.target), _plain(found.source))
        return self._read_side("target", self.worst_part(sample))

    def worst_part(self, sample: SampleLoss) -> list[int]:
        """The tokens of the document in a sample that lost most; all of them when it is one document, or hardly more."""
        number = int(sample.sample_id[1])
        tokens, losses = self.target(number), sample.token_losses
        if not isinstance(self.dataset, BlockDataset) or losses is None:
            return tokens
        parts = [part for part in self._parts(number, len(tokens)) if part[1] - part[0] >= _MIN_TOKENS]
        if not parts:
            return tokens
        start, end = max(parts, key=lambda part: sum(losses[part[0] : part[1]]) / (part[1] - part[0]))
        return tokens[start:end]

    def as_suspect(self, found_sample: SampleLoss, rank: int) -> Suspect:
        """A sample as the verdict names it, with the place and the beginning of its text."""
        dataset, sample = str(found_sample.sample_id[0]), int(found_sample.sample_id[1])
        ranked = RankedSample(
            rank=rank,
            dataset=dataset,
            sample=sample,
            loss=found_sample.loss,
            num_tokens=found_sample.num_tokens,
            share=0.0,
            token_losses=self._by_document(found_sample),
        )
        description = describe_dataset(self.dataset)
        found = SampleDecoder({} if description is None else {dataset: description}).decode([ranked])[0]
        text = found.text if not found.source_text else f"{found.source_text} → {found.text}"
        return Suspect(
            dataset=dataset,
            sample=sample,
            document=found.document,
            rank=rank,
            loss=found_sample.loss,
            file=found.file,
            line=found.line,
            text=text[:_MAX_TEXT],
        )

    def _parts(self, sample: int, length: int) -> list[tuple[int, int]]:
        """Where the documents of a block begin and end in it."""
        assert isinstance(self.dataset, BlockDataset)
        starts = sorted({0, *self.dataset.boundaries(sample)})
        return list(zip(starts, [*starts[1:], length], strict=True))

    def _by_document(self, sample: SampleLoss) -> tuple[float, ...] | None:
        """Losses of tokens, such that the worst one lies in the document that lost most on the whole."""
        losses = sample.token_losses
        if losses is None or not isinstance(self.dataset, BlockDataset):
            return losses
        means: list[float] = []
        for start, end in self._parts(int(sample.sample_id[1]), len(losses)):
            part = losses[start:end]
            # A few tokens may lose much by accident: they count as if more usual ones stood beside them.
            means += [sum(part) / (len(part) + 4)] * len(part)
        return tuple(means)

    def _read_pair(self, target: list[int], source: list[int]) -> Reading:
        reading = self._read_side("target", target)
        if reading.cause == REPETITION:
            return reading
        if is_like_the_source(self._decode(target), self._side("target").profile, self._side("source").profile):
            told = "the target reads like the source's language, not like its own"
            return Reading(cause=FOREIGN_LANGUAGE, strength=max(0.8, reading.strength), evidence=(told,))
        of_source = self._read_side("source", source)
        if of_source.cause and of_source.strength > reading.strength:
            return Reading(
                cause=of_source.cause,
                strength=of_source.strength,
                evidence=("it is the source:", *of_source.evidence),
            )
        return reading

    def _read_side(self, name: str, tokens: list[int]) -> Reading:
        side, text = self._side(name), self._decode(tokens)
        return read_text(text, tokens, measure_text(text, tokens, side.profile), side.profile, side.spread)

    def _side(self, name: str) -> Side:
        if name not in self._sides:
            numbers = random.Random(0).sample(range(len(self.dataset)), min(_NUM_TEXTS, len(self.dataset)))
            samples = [self.dataset[number] for number in numbers]
            rows = [_plain(one.target if name == "target" else one.source) for one in samples]
            texts = [self._decode(row) for row in rows]
            profile = profile_of(texts)
            measures = [measure_text(text, row, profile, is_own=True) for text, row in zip(texts, rows, strict=True)]
            self._sides[name] = Side(profile=profile, spread=spread_of(measures))
        return self._sides[name]


def _plain(tokens: Any) -> list[int]:
    return [int(token) for token in tokens]
