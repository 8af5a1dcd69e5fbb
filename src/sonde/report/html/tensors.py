"""Tensors around the step of a verdict, against the same tensors in a calm step, in the order of execution."""

import math
from collections.abc import Sequence
from typing import Final

from sonde.forensics.verdict import ModuleStatistics, Verdict
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, table, tag

_MAX_ROWS: Final = 600
_MAX_OPEN: Final = 40
OUTLYING: Final = 4.0
"""So many times the calm norm stand out."""


def tensors(verdicts: tuple[Verdict, ...]) -> Markup | None:
    """A table for each verdict that has statistics."""
    found = [verdict for verdict in verdicts if verdict.modules]
    return tag("div", [_section(verdict) for verdict in found]) if found else None


def _section(verdict: Verdict) -> Markup:
    modules = verdict.modules
    if len(modules) <= _MAX_OPEN:
        shown: Child = _table(modules)
    else:
        marked = [one for one in modules if is_outlying(one)]
        more = len(modules) - _MAX_ROWS
        shown = [
            _table(marked[:_MAX_OPEN]) if marked else None,
            tag("details", tag("summary", "All of them"), _table(modules[:_MAX_ROWS])),
            tag("p", f"and {more:,} more", class_="note") if more > 0 else None,
        ]
    title = tag("h2", f"Tensors at step {verdict.step:,}")
    return tag("section", title, tag("p", summary(modules)), shown, id=f"tensors-{verdict.step}")


def _table(modules: Sequence[ModuleStatistics]) -> Markup:
    columns = ("module", "of", "norm", "calm norm", "ratio", "", "max", "not finite")
    numbers = ("norm", "calm norm", "ratio", "max", "not finite")
    return table(columns, map(_row, modules), right=numbers, class_="tensors")


def _row(one: ModuleStatistics) -> list[Child]:
    times = ratio(one)
    tone = "bad" if is_outlying(one) else None
    # On a logarithmic scale: half full is as it was, empty a thousandth of it, full a thousand times as much.
    share = 0.0 if times is None or not times > 0 else 0.5 + math.log10(min(times, 1e3)) / 6
    return [
        tag("code", one.module, class_=tone),
        one.kind,
        wording.number(one.norm),
        wording.number(one.calm_norm),
        tag("span", ratio_text(one), class_=tone) if times is not None else None,
        bar(share, "ratio") if times is not None else None,
        wording.number(one.max_abs),
        tag("span", wording.number(one.num_nonfinite), class_="bad") if one.num_nonfinite else None,
    ]


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
    return f"{times:.3g}×" if math.isfinite(times) and times < 1e6 else wording.number(times)


def is_outlying(one: ModuleStatistics) -> bool:
    """Is it far from what it was, or not finite?"""
    times = ratio(one)
    return one.num_nonfinite > 0 or (times is not None and not 1 / OUTLYING < times < OUTLYING)


def summary(modules: tuple[ModuleStatistics, ...]) -> str:
    """How many there are and how many stand out, in a sentence."""
    marked = sum(map(is_outlying, modules))
    standing = f"{marked:,} of them not finite, or" if marked else "all of them finite, and none"
    return f"{len(modules):,} tensors in the order of execution; {standing} beyond {OUTLYING:g} times its calm norm either way."
