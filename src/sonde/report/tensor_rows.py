"""Tensors of a verdict against the same tensors in a calm step: which of them stand out. Pure."""

import math
from typing import Final

from sonde.forensics.verdict import ModuleStatistics
from sonde.report.wording import number

OUTLYING: Final = 4.0
"""So many times the calm norm stand out."""


def ratio(one: ModuleStatistics) -> float | None:
    """How many times its calm norm it has; None when that is not known."""
    if one.calm_norm is None or not one.calm_norm > 0:
        return None
    return one.norm / one.calm_norm


def ratio_text(one: ModuleStatistics) -> str:
    """The ratio with three digits; empty when it is not known."""
    times = ratio(one)
    if times is None:
        return ""
    return f"{times:.3g}×" if math.isfinite(times) and times < 1e6 else number(times)


def is_outlying(one: ModuleStatistics) -> bool:
    """Is it far from what it was, or not finite?"""
    times = ratio(one)
    return one.num_nonfinite > 0 or (times is not None and not 1 / OUTLYING < times < OUTLYING)


def summary(modules: tuple[ModuleStatistics, ...]) -> str:
    """How many there are and how many stand out, in a sentence."""
    marked = sum(map(is_outlying, modules))
    standing = f"{marked:,} of them not finite, or" if marked else "all of them finite, and none"
    return f"{len(modules):,} tensors in the order of execution; {standing} beyond {OUTLYING:g} times its calm norm either way."
