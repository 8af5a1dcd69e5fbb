"""Do the targets of suspicious pairs belong to their sources? Every target of the batch is tried with every suspicious source.

Where another target of the same batch fits a source as well as targets usually do, the labels were shuffled. Where none does, it still tells
whether the source helps at all: a target that is as likely after any other source is not its translation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.forensics.replay import Replay
from sonde.forensics.sample_test import SuspectRow
from sonde.forensics.sample_texts import SampleTexts
from sonde.forensics.seams import Corpus, Row
from sonde.spread import Spread

_MAX_SUSPECTS: Final = 8
_MAX_TARGETS: Final = 24


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PairTest:
    """How targets fit sources."""

    num_tried: int
    """Suspicious sources that were tried."""
    num_swapped: int
    """Those that another target of the batch fits as well as targets usually fit."""
    num_unhelped: int
    """Those whose own target is as likely after other sources."""
    example: str
    """The clearest one, in words."""


def test_pairs(
    replay: Replay, texts: SampleTexts, suspects: Sequence[SuspectRow], batch: Sequence[Row], usual: Spread
) -> PairTest | None:
    """Try the targets of a batch's samples with the sources of the suspects; None without pairs, or where no batch can be made of them."""
    own_rows = [texts.row(one.sample) for one in suspects]
    # Those under suspicion first: shuffled labels are shuffled among themselves.
    rows = list({row.name: row for row in [*own_rows, *batch]}.values())[:_MAX_TARGETS]
    if any(row.source is None for row in rows) or texts.corpus.batch(rows[:1]) is None:
        return None
    num_swapped = num_unhelped = 0
    example, clearest = "", 0.0
    tried = own_rows[:_MAX_SUSPECTS]
    for row in tried:
        losses = _losses(replay, texts.corpus, [Row(other.name, other.target, row.source) for other in rows])
        backwards = _losses(replay, texts.corpus, [Row(other.name, row.target, other.source) for other in rows])
        own = losses[row.name]
        others = [other.name for other in rows if other.name != row.name]
        best = min(others, key=losses.__getitem__, default=row.name)
        gap = own - losses[best]
        if losses[best] <= usual.median + 3.5 * usual.deviation and gap > 0.5 * (own - usual.median):
            num_swapped += 1
            if gap > clearest:
                clearest = gap
                example = f"sample {row.name[1]} loses {own:.2f} with its own target, {losses[best]:.2f} with that of sample {best[1]}"
        helped = Spread([backwards[other] for other in others]).median - own
        num_unhelped += not helped > 0.25 * own
    return PairTest(num_tried=len(tried), num_swapped=num_swapped, num_unhelped=num_unhelped, example=example)


def _losses(replay: Replay, corpus: Corpus, rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    found = replay.loss(batches=[corpus.batch(rows)])
    losses = [math.inf if one.loss is None else one.loss for one in found.samples]
    return dict(zip([row.name for row in rows], losses, strict=True))
