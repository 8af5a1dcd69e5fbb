"""Several runs together: which of them saw the same data in the same order, and what recurs. Pure.

    groups_of(curves)                         runs that share an order of data; copies are one run
    find_recurring(curves, findings)          the findings, with the number of runs that have them

Two runs that see the same batches have residuals that rise and fall together, whatever their
weights: the noise of a loss is mostly the data's. So the groups come from the correlation of
residuals, with everything far out clipped, and not from the events that are then compared. A copy
of a curve would agree with itself about everything, so it counts once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from sonde.curves.clues import Guess
from sonde.curves.judgement import LOSS_KINDS, Finding
from sonde.curves.loss_curves import LossCurve
from sonde.records.columns import Floats, Integers
from sonde.report.wording import number
from sonde.spikes.detectors import LARGEST

MIN_CORRELATION: Final = 0.5
"""Runs with residuals that correlate at least this much share an order of data."""
_MIN_COMMON: Final = 64
"""Fewer common steps say nothing."""
_MAX_COMMON: Final = 20_000
_REACH: Final = 8
"""Points on either side in the median that a residual is taken from."""
_CLIP: Final = 3.0
_SAME: Final = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs that share an order of data, by their places in what was given."""

    members: tuple[int, ...]
    """The runs, without copies."""
    copies: tuple[int, ...] = ()
    """Runs whose curve is that of a member."""


def residuals(values: Floats) -> Floats:
    """Return how far every value is from the median of its surroundings, in units of the usual
    distance, clipped.
    """
    bounded = np.clip(values, -LARGEST, LARGEST)
    known = bounded[np.isfinite(values)]
    filled = np.where(np.isfinite(values), bounded, np.median(known) if len(known) else 0.0)
    padded = np.pad(filled, _REACH, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1)
    away = filled - np.median(windows, axis=1)
    spread = float(np.median(np.abs(away))) or 1.0
    clipped: Floats = np.clip(away / spread, -_CLIP, _CLIP)
    return clipped


def correlation(first: LossCurve, second: LossCurve) -> float:
    """Return how much the residuals of two runs rise and fall together; 0 if they have too few
    steps in common.
    """
    _, here, there = _common(first, second)
    if len(here) < _MIN_COMMON:
        return 0.0
    one = residuals(first.values)[here]
    other = residuals(second.values)[there]
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def is_copy(first: LossCurve, second: LossCurve) -> bool:
    """Return whether two curves are one: the same losses at nearly all steps of the shorter."""
    common, here, there = _common(first, second)
    if len(common) < max(3, 0.9 * min(len(first), len(second), _MAX_COMMON)):
        return False
    one = first.values[here]
    other = second.values[there]
    close = np.isclose(one, other, rtol=_SAME, atol=0.0, equal_nan=True)
    return bool(close.mean() > 0.99)


def _common(first: LossCurve, second: LossCurve) -> tuple[Integers, Integers, Integers]:
    steps, here, there = np.intersect1d(first.steps, second.steps, return_indices=True)
    return steps[:_MAX_COMMON], here[:_MAX_COMMON], there[:_MAX_COMMON]


def groups_of(curves: Sequence[LossCurve]) -> list[Group]:
    """Return the runs in groups that share an order of data, in the order they were given."""
    copies = _copies(curves)
    group_of = {place: place for place in range(len(curves)) if place not in copies}
    for earlier, place in combinations(group_of, 2):
        kept = group_of[earlier]
        joined = group_of[place]
        if kept != joined and correlation(curves[earlier], curves[place]) >= MIN_CORRELATION:
            moved = [member for member, group in group_of.items() if group == joined]
            group_of.update(dict.fromkeys(moved, kept))
    groups = []
    for leader in sorted(set(group_of.values())):
        members = tuple(place for place, group in group_of.items() if group == leader)
        same = tuple(place for place, original in copies.items() if original in members)
        groups.append(Group(members=members, copies=same))
    return groups


def _copies(curves: Sequence[LossCurve]) -> dict[int, int]:
    """Return the runs that repeat an earlier one, each with that one."""
    copies: dict[int, int] = {}
    for earlier, place in combinations(range(len(curves)), 2):
        is_known = earlier in copies or place in copies
        if not is_known and is_copy(curves[earlier], curves[place]):
            copies[place] = earlier
    return copies


def find_recurring(
    curves: Sequence[LossCurve], findings: Sequence[Sequence[Finding]], groups: Sequence[Group]
) -> list[list[Finding]]:
    """Return the findings of every run; an event that other runs of its group have at the same step
    says so, and that it is the data's.
    """
    with_company = [list(found) for found in findings]
    for group in groups:
        for place in (*group.members, *group.copies):
            with_company[place] = [
                _with_company(finding, curves, findings, group) for finding in with_company[place]
            ]
    return with_company


def _with_company(
    finding: Finding,
    curves: Sequence[LossCurve],
    findings: Sequence[Sequence[Finding]],
    group: Group,
) -> Finding:
    if finding.kind not in LOSS_KINDS or finding.is_replaced or len(group.members) < 2:
        return finding
    step = finding.first_step
    reached = [
        member
        for member in group.members
        if curves[member].steps[0] <= step <= curves[member].steps[-1]
    ]
    having = [member for member in reached if has_event_at(findings[member], step)]
    counted = replace(finding, num_runs=len(having), of_runs=len(reached))
    if len(having) < 2:
        return counted
    guess = Guess(
        cause="data",
        sentence=f"The data: {number(len(having))} of {number(len(reached))} runs jump at this step"
        " under other weights.",
    )
    return replace(counted, probably=(guess,))


def has_event_at(findings: Sequence[Finding], step: int) -> bool:
    """Return whether a run has an event of the loss at a step."""
    return any(
        finding.first_step <= step <= finding.last_step
        for finding in findings
        if finding.kind in LOSS_KINDS and not finding.is_replaced
    )
