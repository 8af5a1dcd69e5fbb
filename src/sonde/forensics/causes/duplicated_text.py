"""The same text many times over in one batch."""

import math
from typing import Final

from sonde.forensics.causes.rule import SKIP, Finding, Rule
from sonde.forensics.causes.text_kind import is_read
from sonde.forensics.evidence import Evidence
from sonde.forensics.seams import Row
from sonde.texts.duplicates import repeats_within

_TIMES_USUAL: Final = 2.0
"""A batch has more duplicates than usual when it has so many times as many as any other,"""
_FAR: Final = 5.0
"""and so many deviations more than all of them say,"""
_LEAST: Final = 3
_LEAST_SHARE: Final = 0.08
_SAME: Final = 0.95
"""What is written by a pattern, such as code, is alike in most of what it says; only what is alike in all of it stands there twice."""
_FEW: Final = 4
"""and at least so many; when they are a smaller part of it, so many."""


def judge(evidence: Evidence) -> Finding | None:
    """Are far more samples copies of one another than in other batches?"""
    samples = evidence.samples
    rows = [_whole(one.row) for one in samples]
    here = repeats_within(rows)
    if sum(is_read(evidence, samples[place]) for place in here.rows) > len(here.rows) / 2:
        here = repeats_within(rows, least=_SAME)
    others = [[_whole(row) for row in evidence.lab.rows_of(one)] for one in evidence.lab.other_batches()]
    repeats = [repeats_within(rows) for rows in others]
    usual, num = max((one.share for one in repeats), default=0.0), len(here.rows)
    expected = len(samples) * (sum(len(one.rows) for one in repeats) + 0.5) / (sum(map(len, others)) + 1)
    if num < (_LEAST if here.share >= _LEAST_SHARE else _FEW) or here.share < _TIMES_USUAL * usual:
        return None
    if num - expected < _FAR * math.sqrt(expected):
        return None
    alike = [samples[place] for place in here.rows]
    told = [f"{len(alike)} of its {len(samples)} samples say mostly the same; in other batches at most {usual:.0%} do"]
    times = None if evidence.corpus is None else evidence.corpus.occurrences(alike[0].row.target)
    if times:
        told.append(f"what sample {alike[0].row.name[1]} says stands {times} times in the corpus")
    score = 0.65 + 0.3 * min(1.0, (here.share - usual) / 0.4)
    return Finding(score=score, evidence=told, suspects=evidence.suspects(alike))


def _whole(row: Row) -> list[int]:
    return [*(row.source or ()), *row.target]


RULE: Final = Rule(
    title="The batch holds the same text many times over.",
    advice=(SKIP, "Remove duplicates from the corpus and prepare it again."),
    blames="samples",
    family="text",
    needs=frozenset({"replay", "text"}),
    judge=judge,
)
