"""Evidence in sentences that several causes and the verdict itself say: where gradients are large, and what could not have been seen."""

import math
from typing import Final

from sonde.forensics.evidence import Evidence
from sonde.forensics.tensor_watch import GRADIENT
from sonde.spread import Spread

_NUM_MODULES: Final = 3


def told_of_gradients(evidence: Evidence) -> list[str]:
    """The gradient norm against calm steps, and the modules whose gradient is farthest from a calm one's."""
    usual = Spread([one.grad_norm for one in evidence.case.calm if one.grad_norm is not None])
    norm = evidence.made.grad_norm
    told = (
        []
        if norm is None or not len(usual)
        else [f"the gradient norm is {norm:.3g}, {usual.z(norm):+.1f} deviations from calm steps"]
    )
    ratios = [
        (one.norm / calm, one.module)
        for one in evidence.made.modules
        if one.kind == GRADIENT and (calm := evidence.calm_modules.get((one.module, one.kind), 0.0)) > 0
    ]
    for ratio, module in sorted(ratios, reverse=True)[:_NUM_MODULES]:
        told += [f"the gradient of {module} is {ratio:.2g} times that of a calm step"] if ratio > 2 else []
    return told


def told_of_limits(evidence: Evidence, rarity: float) -> list[str]:
    """What could not have been seen: how high the loss of one sample must be to stand out, so rare as a power of ten."""
    num, usual = len(evidence.samples), evidence.reference.losses
    if not num:
        return ["losses of single samples are not known"]
    z = usual.start + (rarity + math.log10(0.05 * num)) * math.log(10) * usual.slope
    deviation = evidence.case.losses.deviation
    typical = float(usual.model.expected(None, 1)[0])
    told = f"one bad sample of {num} stands out from {max(z, 0.0):.1f} deviations above samples of its length"
    if math.isfinite(deviation) and math.isfinite(typical):
        told += f"; doubling its loss moves the loss of the step by {typical / num:.2g}, which varies by {deviation:.2g} anyway"
    return [told]
