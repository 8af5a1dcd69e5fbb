"""Signs of the texts of a step compared with their corpus: of each text, of its document with the
highest loss, and of its source.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from sonde.forensics.seams import Name, Row, RunTexts
from sonde.texts import signs
from sonde.texts.pairs import (
    MISMATCHED,
    TRUNCATED,
    PairProfile,
    find_signs_of_pairs,
    pair_profile_of,
)
from sonde.texts.profile import CorpusProfile, profile_of
from sonde.texts.signs import CLEAR, Sign, find_signs_of_all

NUM_TEXTS: Final = 600
"""How many samples of the corpus make up the text profile."""
NUM_PAIRS: Final = 2400
"""How many pairs show which words go together: with fewer, random targets look like good ones."""
NUM_READ: Final = 2000
"""How many more samples are read to learn how rare each sign is."""
OF_LENGTH: Final = (TRUNCATED, MISMATCHED)
"""Signs that may follow from lengths alone."""
_OF_SOURCE: Final = 0.8
"""The weight of signs in the source: less than 1, because the loss is on the target."""
_VAGUE: Final = (signs.FOREIGN_LANGUAGE, signs.GARBLED_TEXT)
_OF_MANY: Final = (*signs.NO_PROSE, signs.MIS_DECODED, signs.OTHER_SCRIPT, signs.SHOUTING, *_VAGUE)
"""What several pieces together may turn out to be."""
_LEAST_PIECES: Final = 4
"""Short pieces of non-prose may look foreign or garbled; this many pieces are read as one text."""
_MIN_TOKENS: Final = 12
"""Shorter parts of a row are judged together with the rest."""
_LIKE: Final = 1.3
_LEAST_LIKE: Final = 60
"""Samples are of similar length within a factor of `_LIKE`; at least `_LEAST_LIKE` are used,
however much they differ.
"""
_SIDES: Final = ("target", "source")
_UNSEEN: Final = 0.3
"""The count assumed for what was never seen."""
_DAMAGE: Final = (
    signs.MIS_DECODED,
    signs.CONTROL_CHARACTERS,
    signs.OTHER_SCRIPT,
    signs.FOREIGN_LANGUAGE,
    signs.GARBLED_TEXT,
)
"""Signs that ordinary text is hardly ever taken for. Others, such as code and capitals, also are
habits of a corpus.
"""
_ALIKE: Final = 0.8
"""A sign is about as strong as a clear one if it has this fraction of its strength."""
_RARE: Final = 0.003
"""Damage counts as at most this frequent."""
_DIRTY: Final = 0.04
"""Damage in up to this fraction of the samples is not yet a habit of the corpus."""


class UsualSigns:
    """How common signs are in a corpus: the strongest sign of each of many samples."""

    def __init__(self, rows: Sequence[Row], first: Sequence[tuple[str, float] | None]) -> None:
        self._first = first
        self._by_length = {
            name: sorted(
                (len(side), place)
                for place, row in enumerate(rows)
                if (side := getattr(row, name)) is not None
            )
            for name in _SIDES
        }

    def share(self, row: Row, strength: float, kind: str | None = None) -> float:
        """Return the fraction of samples with a sign at least as strong, optionally of one kind.

        It is the highest of the fractions among all samples and among those with a target or a
        source of similar length. A corpus differs by length (short lines are headings, names and
        keys), and a batch may contain sources of one length.

        A few per cent of damaged texts do not make damage usual, also where they share a length.
        """
        found = self._part(range(len(self._first)), strength, kind)
        if kind in _DAMAGE and strength >= _ALIKE * CLEAR and found <= _DIRTY:
            return min(found, _RARE)
        for name, by_length in self._by_length.items():
            side = getattr(row, name)
            if side is not None and by_length:
                found = max(found, self._part(_like(by_length, len(side)), strength, kind))
        return found

    def are_damaged(self, num: int) -> list[bool]:
        """Return which of the first `num` samples are clearly damaged."""
        damaged = []
        for sign in self._first[:num]:
            kind, strength = sign or ("", 0.0)
            damaged.append(kind in _DAMAGE and strength >= CLEAR)
        return damaged

    def _part(self, places: Sequence[int], strength: float, kind: str | None) -> float:
        num = 0
        for place in places:
            first = self._first[place]
            if first is None or (kind and first[0] != kind):
                continue
            if first[1] >= strength:
                num += 1
        return (num + _UNSEEN) / (len(places) + 1)


def _like(by_length: Sequence[tuple[int, int]], length: int) -> list[int]:
    """Return the samples of similar length, from a list sorted by length."""
    start = bisect_right(by_length, (length / _LIKE,))
    end = bisect_left(by_length, (length * _LIKE,))
    if end - start < _LEAST_LIKE:
        middle = bisect_left(by_length, (length,))
        start = min(max(middle - _LEAST_LIKE // 2, 0), max(len(by_length) - _LEAST_LIKE, 0))
        end = start + _LEAST_LIKE
    return [place for _, place in by_length[start:end]]


class Readings:
    """Reads the texts of one corpus."""

    def __init__(self, corpus: RunTexts, leave_out: Collection[Name] = ()) -> None:
        """`leave_out` are the samples in question: in a small corpus, each would make itself look
        usual.
        """
        self.corpus = corpus
        self.text = corpus.decode
        """Decodes the tokens of a target."""
        self._leave_out = frozenset(leave_out)

    @cached_property
    def some(self) -> list[Row]:
        """Samples from all over the corpus."""
        return [row for row in self.corpus.some(NUM_TEXTS) if row.name not in self._leave_out]

    def usual(self, rows: Sequence[Row], losses: Sequence[Sequence[float] | None]) -> UsualSigns:
        """Return how common signs are in these rows and in many more of the corpus."""
        known = self._leave_out | {row.name for row in rows}
        num_profiled = NUM_TEXTS if self._pair_profile is None else len(self._pairs)
        some = self.corpus.some(num_profiled + NUM_READ)[num_profiled:]
        more = [row for row in some if row.name not in known]
        read = self.read([*rows, *more], [*losses, *([None] * len(more))])
        first = [(of_row[0].kind, of_row[0].strength) if of_row else None for of_row in read]
        return UsualSigns([*rows, *more], first)

    @cached_property
    def _pairs(self) -> list[Row]:
        """The pairs that the profile is made of, if the corpus has pairs. Half of a small corpus is
        left to be read.
        """
        if not any(row.source is not None for row in self.some):
            return []
        num_known = len(self.corpus.some(NUM_PAIRS + NUM_READ))
        return self.corpus.some(max(min(NUM_PAIRS, num_known - NUM_READ), NUM_TEXTS))

    @cached_property
    def _pair_profile(self) -> PairProfile | None:
        pairs = [
            row for row in self._pairs if row.source is not None and row.name not in self._leave_out
        ]
        return pair_profile_of(*self._sides(pairs)) if pairs else None

    @cached_property
    def profile(self) -> CorpusProfile:
        """The profile of the corpus's targets."""
        if self._pair_profile is not None:
            return self._pair_profile.target
        return profile_of([self.text(row.target) for row in self.some])

    @cached_property
    def token_entropy(self) -> float:
        """The loss of a unigram model of the target tokens."""
        counts = Counter(token for row in self.some for token in row.target)
        total = sum(counts.values())
        if not total:
            return math.nan
        entropy = -sum(count / total * math.log(count / total) for count in counts.values())
        # Miller-Madow correction, because a sample misses rare tokens
        return entropy + (len(counts) - 1) / (2 * total)

    def read(
        self, rows: Sequence[Row], losses: Sequence[Sequence[float] | None]
    ) -> list[list[Sign]]:
        """Return the signs of each row, strongest first. `losses` are its token losses."""
        parts = {
            place: part
            for place, row in enumerate(rows)
            if (part := self._part(row, losses[place])) is not None
        }
        of_parts = dict(zip(parts, self._read(list(parts.values())), strict=True))
        whole = self._read([list(row.target) for row in rows])
        found = [_together(of_row, of_parts.get(place, ())) for place, of_row in enumerate(whole)]
        if self._pair_profile is not None:
            of_pairs = self._of_pairs(rows, self._pair_profile)
            found = [
                _together(of_row, of_pair) for of_row, of_pair in zip(found, of_pairs, strict=True)
            ]
        return found

    def _read(self, tokens: Sequence[list[int]]) -> list[list[Sign]]:
        return find_signs_of_all(
            [self.text(token) for token in tokens], self.profile, tokens=tokens
        )

    def read_together(
        self, rows: Sequence[Row], losses: Sequence[Sequence[float] | None], far: Collection[int]
    ) -> list[list[Sign]]:
        """Return the signs of each row of one batch.

        Where pieces are too short to classify, several are read as one text: those that hint at the
        same kind, and those far from usual samples (`far`, by index).
        """
        found = self.read(rows, losses)
        for kind in signs.NO_PROSE:
            places = [
                place
                for place, of_row in enumerate(found)
                if any(sign.kind == kind for sign in of_row)
            ]
            self._read_as_one(rows, found, places, (kind,))
        self._read_as_one(
            rows, found, [place for place in far if not _is_clear(found[place])], _OF_MANY
        )
        return found

    def _read_as_one(
        self,
        rows: Sequence[Row],
        found: list[list[Sign]],
        places: Sequence[int],
        kinds: Sequence[str],
    ) -> None:
        """Put the first clear sign of `kinds` that these rows have together before the vague ones
        of each.
        """
        unsure = [
            place
            for place in places
            if not _is_clear(found[place]) or found[place][0].kind in _VAGUE
        ]
        if len(places) < _LEAST_PIECES or not unsure:
            return
        # which may cut a character in two
        pieces = [self.text(rows[place].target).strip("\ufffd") for place in places]
        whole = find_signs_of_all([" ".join(pieces)], self.profile)[0]
        clear = [sign for sign in whole if sign.kind in kinds and sign.strength >= CLEAR]
        if not clear:
            return
        for place in unsure:
            kept = [sign for sign in found[place] if sign.kind not in (*_VAGUE, *signs.NO_PROSE)]
            found[place] = [clear[0], *kept]

    def _of_pairs(self, rows: Sequence[Row], profile: PairProfile) -> list[list[Sign]]:
        found = []
        for reading in find_signs_of_pairs(*self._sides(rows), profile):
            of_source = [
                Sign(
                    sign.kind,
                    _OF_SOURCE * sign.strength,
                    ("it is the source:", *sign.evidence),
                    of_source=True,
                )
                for sign in reading.source
            ]
            found.append([*reading.pair, *reading.target, *of_source])
        return found

    def _sides(self, rows: Sequence[Row]) -> tuple[list[str], list[str]]:
        return [self.corpus.decode_source(row.source or ()) for row in rows], [
            self.text(row.target) for row in rows
        ]

    def _part(self, row: Row, losses: Sequence[float] | None) -> list[int] | None:
        """Return the tokens of the document with the highest loss, or None for fewer than two
        documents.

        Without losses it is the shortest document.
        """
        parts = [part for part in self.corpus.parts(row) if part[1] - part[0] >= _MIN_TOKENS]
        if len(parts) < 2:
            return None

        def mean_loss(part: tuple[int, int]) -> float:
            return (
                sum(losses[part[0] : part[1]]) / (part[1] - part[0])
                if losses
                else -float(part[1] - part[0])
            )

        start, end = max(parts, key=mean_loss)
        return list(row.target[start:end])


def _is_clear(found: Sequence[Sign]) -> bool:
    return bool(found) and found[0].strength >= CLEAR


def _together(first: Sequence[Sign], second: Sequence[Sign]) -> list[Sign]:
    """Merge two lists of signs: each kind once, strongest first."""
    best: dict[str, Sign] = {}
    for sign in [*first, *second]:
        if sign.kind not in best or sign.strength > best[sign.kind].strength:
            best[sign.kind] = sign
    if any(sign.strength >= CLEAR for sign in best.values() if sign.kind not in OF_LENGTH):
        # Text that is not prose naturally has an unusual length, so length signs count half.
        best |= {
            kind: replace(best[kind], strength=0.5 * best[kind].strength)
            for kind in OF_LENGTH
            if kind in best
        }
    return sorted(best.values(), key=lambda sign: -sign.strength)
