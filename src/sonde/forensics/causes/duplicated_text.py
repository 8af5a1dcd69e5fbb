"""The same text occurs many times in one batch."""

import math
from typing import Final

from sonde.forensics.causes.rule import SKIP, Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.seams import Row
from sonde.texts.duplicates import repeats_within

_TIMES_USUAL: Final = 2.0
"""The batch must have this many times more duplicates than any other batch."""
_FAR: Final = 5.0
"""The batch must have this many deviations more duplicates than other batches."""
_LEAST: Final = 3
_LEAST_SHARE: Final = 0.25
_FEW: Final = 4
"""At least this many copies of one text are required if they are less than `_LEAST_SHARE` of the batch, otherwise `_LEAST`."""
_SAME: Final = 0.9
"""The overlap required of copies: headings, licences, and text from a pattern such as code, overlap a lot anyway."""


def judge(evidence: Evidence) -> Finding | None:
    """Judge whether far more samples are copies of one another than in other batches."""
    samples = evidence.samples
    rows = [_whole(one.row) for one in samples]
    here = repeats_within(rows, least=_SAME)
    others = [[_whole(row) for row in evidence.lab.rows_of(one)] for one in evidence.lab.other_batches]
    repeats = [repeats_within(rows, least=_SAME) for rows in others]
    usual, num = max((one.share for one in repeats), default=0.0), len(here.rows)
    expected = len(samples) * (sum(len(one.rows) for one in repeats) + 0.5) / (sum(map(len, others)) + 1)
    if here.copies < (_LEAST if here.share >= _LEAST_SHARE else _FEW) or here.share < _TIMES_USUAL * usual:
        return None
    if here.copies <= max((one.copies for one in repeats), default=1):
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
    needs="text",
    judge=judge,
)
