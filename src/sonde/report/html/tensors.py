"""Tensors around the step of a verdict, against the same tensors in a calm step, in the order of execution."""

import math
from collections.abc import Sequence
from typing import Final

from sonde.forensics.verdict import ModuleStatistics, Verdict
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, table, tag
from sonde.report.tensor_rows import is_outlying, ratio, ratio_text, summary

_MAX_ROWS: Final = 600
_MAX_OPEN: Final = 40


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
