"""The same text occurs many times in one batch, word for word or nearly so.

Samples are compared by runs of tokens (n-grams). Two that share a few runs quote one another; two
that share most of them are copies. A copy in which every eighth token is another has hardly a long
run in common with its original, so short runs are compared too, one sample with another.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

from sonde.forensics.causes.cause_rule import LOOK_AT_SAMPLES, SKIP, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.seams import Row

_TIMES_USUAL: Final = 2.0
"""The batch must have this many times more duplicates than any other batch."""
_FAR: Final = 5.0
"""The batch must have this many deviations more duplicates than other batches."""
_LEAST: Final = 3
_LEAST_SHARE: Final = 0.25
_FEW: Final = 4
"""At least this many copies of one text are required if they are less than `_LEAST_SHARE` of the
batch, otherwise `_LEAST`.
"""
_RUN: Final = 12
"""The length of a run of tokens."""
_SAME: Final = 0.9
"""The overlap required of copies: headings, licences, and text from a pattern such as code, overlap
a lot anyway.
"""
_SHORT_RUN: Final = 3
_NEARLY: Final = 0.5
"""The overlap required of near-copies, in short runs, with one other sample."""
_FEW_NEAR: Final = 5
"""At least this many near-copies of one text are required if they are less than `_LEAST_SHARE` of
the batch: a few texts with the same heading or licence are nearly the same too.
"""
_OF_COPIES: Final = 0.65
_OF_NEAR_COPIES: Final = 0.5
"""The scores. Text from a pattern, such as code and tables, is nearly the same too, so near-copies
are never sure.
"""
_PER_SHARE: Final = 0.3
_LEAST_RUNS: Final = 6
"""Samples with fewer short runs resemble each other by accident."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether far more samples are copies of one another than in other batches."""
    rows = [_whole(sample.row) for sample in evidence.samples]
    others = [
        [_whole(row) for row in evidence.lab.rows_of(batch)] for batch in evidence.lab.other_batches
    ]
    for find, say, base in (
        (repeats_within, "mostly", _OF_COPIES),
        (near_repeats_within, "nearly", _OF_NEAR_COPIES),
    ):
        here = find(rows)
        elsewhere = [find(batch) for batch in others]
        if not _is_unusual(here, elsewhere, len(rows), sum(map(len, others))):
            continue
        usual = max((repeats.share for repeats in elsewhere), default=0.0)
        alike = [evidence.samples[place] for place in here.rows]
        sentence = (
            f"{len(alike)} of its {len(rows)} samples say {say} the same; in other batches"
            f" at most {usual:.0%} do"
        )
        score = base + _PER_SHARE * min(1.0, (here.share - usual) / 0.4)
        return CauseFinding(score=score, evidence=[sentence], suspects=evidence.suspects(alike))
    return None


def _is_unusual(
    here: "Repeats", elsewhere: Sequence["Repeats"], num_rows: int, num_elsewhere: int
) -> bool:
    """Return whether a batch has far more copies than others."""
    least = _LEAST if here.share >= _LEAST_SHARE else _FEW
    usual = max((repeats.share for repeats in elsewhere), default=0.0)
    if here.copies < least or here.share < _TIMES_USUAL * usual:
        return False
    if here.copies <= max((repeats.copies for repeats in elsewhere), default=1):
        return False
    natural = (sum(len(repeats.rows) for repeats in elsewhere) + 0.5) / (num_elsewhere + 1)
    expected = num_rows * natural
    return len(here.rows) - expected >= _FAR * math.sqrt(expected)


def _whole(row: Row) -> list[int]:
    return [*(row.source or ()), *row.target]


class Repeats(NamedTuple):
    """How much of a batch occurs in it more than once."""

    share: float
    """The fraction of samples that are copies of another sample of the batch."""
    rows: tuple[int, ...]
    """The indices of those samples."""
    copies: int
    """How often the most frequent of those texts occurs; 1 if none does twice."""


def repeats_within(rows: Sequence[Sequence[int]]) -> Repeats:
    """Find the samples of a batch that share nearly all of their token runs with another sample."""
    runs = [_runs(row) for row in rows]
    seen = Counter(run for of_row in runs for run in of_row)
    doubled = [
        place
        for place, of_row in enumerate(runs)
        if of_row and sum(seen[run] > 1 for run in of_row) >= _SAME * len(of_row)
    ]
    copies = max((round(median(seen[run] for run in runs[place])) for place in doubled), default=1)
    return Repeats(len(doubled) / max(len(rows), 1), tuple(doubled), copies)


def near_repeats_within(rows: Sequence[Sequence[int]]) -> Repeats:
    """Find the samples of a batch that share much of their short token runs with another sample."""
    runs = [
        {tuple(row[start : start + _SHORT_RUN]) for start in range(len(row) - _SHORT_RUN + 1)}
        for row in rows
    ]
    alike = [0] * len(rows)
    for place, other in combinations(range(len(rows)), 2):
        largest = max(len(runs[place]), len(runs[other]), _LEAST_RUNS)
        if len(runs[place] & runs[other]) >= _NEARLY * largest:
            alike[place] += 1
            alike[other] += 1
    found = [place for place, num in enumerate(alike) if num]
    copies = max(alike, default=0) + 1
    if len(found) < _LEAST_SHARE * len(rows) and copies < _FEW_NEAR:
        return Repeats(0.0, (), 1)
    return Repeats(len(found) / max(len(rows), 1), tuple(found), copies)


def _runs(row: Sequence[int]) -> set[tuple[int, ...]]:
    # Short samples need longer runs relative to their length, because accidental overlap is a
    # larger part of them.
    length = _RUN if len(row) >= 4 * _RUN else max(round(0.6 * len(row)), 1)
    return {tuple(row[start : start + length]) for start in range(len(row) - length + 1)}


RULE: Final = CauseRule(
    title="The batch holds the same text many times over.",
    advice=(SKIP, "Remove duplicates from the corpus and prepare it again."),
    blames="samples",
    family="text",
    needs="text",
    judge=judge,
    in_doubt=(LOOK_AT_SAMPLES, "Remove duplicates from the corpus and prepare it again."),
)
