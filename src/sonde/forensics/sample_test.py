"""Which samples of a batch are to blame: their losses against those of samples in other batches, and the loss without them.

Pure decisions over numbers; `Laboratory` makes the experiments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.forensics.losses import Losses, SampleLoss
from sonde.spread import Spread

_SUSPECT_Z: Final = 3.0
"""A sample so many deviations above the others is a suspect,"""
_LEAST_SHARE: Final = 0.15
"""if it adds at least this part of what the worst one adds."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SuspectRow:
    """One suspicious row of the batch."""

    row: int
    """Its place among the rows of all micro-batches."""
    sample: SampleLoss
    """What it lost."""
    z: float
    """How many deviations above samples of other batches; infinite when its loss is not finite."""
    excess: float
    """What it adds to the sum of losses above a usual sample of its length."""


def suspect_rows(own: Losses, others: Sequence[Losses], *, least_z: float = _SUSPECT_Z) -> list[SuspectRow]:
    """The samples that lose much more than samples of other batches at the same state, greatest excess first."""
    usual = Spread([sample.loss for one in others for sample in one.samples if sample.loss is not None])
    if not len(usual):
        return []
    found = []
    for row, sample in enumerate(own.samples):
        if sample.loss is None or not _is_real(sample):
            continue
        z = usual.z(sample.loss) if math.isfinite(sample.loss) else math.inf
        if z > least_z:
            excess = (sample.loss - usual.median) * (sample.num_tokens or 1)
            found.append(SuspectRow(row=row, sample=sample, z=z, excess=excess))
    most = max((one.excess for one in found if math.isfinite(one.excess)), default=0.0)
    # Beside one that loses everything, one that loses a little more than usual is no suspect.
    found = [one for one in found if not one.excess < _LEAST_SHARE * most]
    return sorted(found, key=lambda one: -one.excess if math.isfinite(one.excess) else -math.inf)


def _is_real(sample: SampleLoss) -> bool:
    """Is it a sample with a dataset and a number, and not the row of a rank that had none?"""
    name = sample.sample_id
    return isinstance(name, tuple) and len(name) == 2 and isinstance(name[1], int) and name[1] >= 0


def explained(own: float, without: float, normal: float) -> float:
    """What part of a loss above the normal one is gone without the suspects, from 0 to 1."""
    if not math.isfinite(own):
        return 1.0 if math.isfinite(without) else 0.0
    excess = own - normal
    if excess <= 0 or not math.isfinite(without):
        return 0.0
    return max(0.0, min(1.0, (own - without) / excess))
