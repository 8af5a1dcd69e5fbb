"""Do the targets of suspicious pairs belong to their sources? Every target of the batch is tried with every suspicious source.

Where another target of the same batch fits a source as well as targets usually do, the labels were shuffled. Where none does, it still tells
whether the source helps at all: a target that is as likely after any other source is not its translation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.data.collate import Collater
from sonde.data.pairs import PairDataset
from sonde.data.samples import Sample
from sonde.forensics.replay import Replay
from sonde.forensics.sample_test import SuspectRow
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
    replay: Replay, dataset: PairDataset, suspects: Sequence[SuspectRow], batch: Sequence[int], usual: Spread
) -> PairTest:
    """Try the targets of a batch's samples with the sources of the suspects."""
    collater = replay.pieces.data.collater  # type: ignore[attr-defined]  # a PairDataset comes with a TokenLoader
    tried = [int(one.sample.sample_id[1]) for one in suspects[:_MAX_SUSPECTS]]
    # Those under suspicion first: shuffled labels are shuffled among themselves.
    targets = list(dict.fromkeys([*(int(one.sample.sample_id[1]) for one in suspects), *batch]))[:_MAX_TARGETS]
    num_swapped = num_unhelped = 0
    example, clearest = "", 0.0
    for source in tried:
        losses = _losses(replay, dataset, collater, source, targets)
        backwards = _losses_of_target(replay, dataset, collater, source, targets)
        own = losses[source]
        best = min((other for other in targets if other != source), key=losses.__getitem__, default=source)
        gap = own - losses[best]
        if losses[best] <= usual.median + 3.5 * usual.deviation and gap > 0.5 * (own - usual.median):
            num_swapped += 1
            if gap > clearest:
                clearest = gap
                example = f"sample {source} loses {own:.2f} with its own target, {losses[best]:.2f} with that of sample {best}"
        helped = Spread([backwards[other] for other in targets if other != source]).median - own
        num_unhelped += not helped > 0.25 * own
    return PairTest(num_tried=len(tried), num_swapped=num_swapped, num_unhelped=num_unhelped, example=example)


def _losses(
    replay: Replay, dataset: PairDataset, collater: Collater, source: int, targets: Sequence[int]
) -> dict[int, float]:
    """What each target loses after one source."""
    rows = [Sample(dataset.target[target], dataset.source[source], dataset.name, target) for target in targets]
    return _by_target(replay, collater, rows, targets)


def _losses_of_target(
    replay: Replay, dataset: PairDataset, collater: Collater, target: int, sources: Sequence[int]
) -> dict[int, float]:
    """What one target loses after each source."""
    rows = [Sample(dataset.target[target], dataset.source[source], dataset.name, source) for source in sources]
    return _by_target(replay, collater, rows, sources)


def _by_target(replay: Replay, collater: Collater, rows: list[Sample], names: Sequence[int]) -> dict[int, float]:
    found = replay.loss(batches=[collater(rows)])
    losses = [math.inf if one.loss is None else one.loss for one in found.samples]
    return dict(zip(names, losses, strict=True))
