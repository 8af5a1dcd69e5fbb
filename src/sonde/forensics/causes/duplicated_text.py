"""The same text many times over in one batch."""

from typing import Final

from sonde.forensics.causes.rule import SKIP, Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.seams import Row
from sonde.texts.duplicates import repeats_within

_SHARE: Final = 0.08
"""A batch is full of duplicates when this part of its samples are some,"""
_TIMES_USUAL: Final = 2.0
"""and so many times as many as in other batches,"""
_LEAST: Final = 3
"""and at least so many."""


def judge(evidence: Evidence) -> Finding | None:
    """Are far more samples copies of one another than in other batches?"""
    samples = evidence.samples
    here = repeats_within([_whole(one.row) for one in samples])
    others = [[_whole(row) for row in evidence.lab.rows_of(one)] for one in evidence.lab.other_batches()]
    usual = max((repeats_within(rows).share for rows in others), default=0.0)
    if len(here.rows) < _LEAST or here.share < max(_SHARE, _TIMES_USUAL * usual + 0.05):
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
    name="duplicated_text",
    title="The batch holds the same text many times over.",
    advice=(SKIP, "Remove duplicates from the corpus and prepare it again."),
    blames="samples",
    family="text",
    needs=frozenset({"replay", "text"}),
    judge=judge,
)
