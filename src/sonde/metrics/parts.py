"""`Parts`: the flat form that every meter can be taken apart into and put together from.

Three lists of numbers, each with its own rule for putting two of them together:

    added     integers that are added          exact sums (as limbs), counts, buckets
    highest   floats of which the larger stays  maxima, and minima with their sign turned
    latest    a float of which the later stays  "later" over ranks means the higher rank

A tensor is accumulated on its device in this form, and ranks exchange this form, so each rule is written once.
"""

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What one meter holds, as plain numbers."""

    added: list[int] = field(default_factory=list)
    """Put together by adding."""
    highest: list[float] = field(default_factory=list)
    """Put together by taking the larger."""
    latest: float | None = None
    """Put together by taking the later; None when there was none."""
