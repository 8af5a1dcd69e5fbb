"""Verdicts in a report: causes, evidence, suspects and experiments; and tensors compared with a calm step."""

import math
from collections.abc import Sequence
from typing import Final

from sonde.forensics.verdict import Cause, Experiment, ModuleStatistics, ReplayResult, Suspect, Verdict
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, escape, group, left_out, note, section, table, tag

_MAX_SUSPECTS: Final = 10
_MAX_TEXT: Final = 1200
_MAX_ROWS: Final = 600
_MAX_OPEN: Final = 40
OUTLYING: Final = 4.0
"""A norm stands out if it is more than this factor above or below its calm norm."""


def verdicts(found: tuple[Verdict, ...]) -> Markup | None:
    """Render one section for each diagnosed step."""
    return tag("div", [_verdict(one) for one in found]) if found else None


def _verdict(verdict: Verdict) -> Markup:
    first, *others = verdict.causes or (None,)
    made = [wording.moment(verdict.time)] if verdict.time else []
    made += [f"took {wording.duration(verdict.seconds)}"] if verdict.seconds else []
    parts: list[Child] = [_cause(first, class_="cause first") if first is not None else None]
    parts += [tag("div", tag("h3", "Less likely"), map(_cause, others))] if others else []
    parts += [_replay(verdict.replay)] if verdict.replay is not None else []
    parts += [_experiments(verdict.experiments)] if verdict.experiments else []
    parts += [note(f"Diagnosis of {', '.join(made)}" if made else "")]
    return section(f"What happened at step {verdict.step:,}", parts, class_="verdict", id=f"verdict-{verdict.step}")


def _cause(cause: Cause, class_: str = "cause") -> Markup:
    rank = None if cause.rank is None else str(cause.rank)
    points_at = {"module": cause.module, "rank": rank, "setting": cause.setting}
    labels = [tag("span", f"{name} ", tag("code", text), class_="label") for name, text in points_at.items() if text]
    kind = tag("span", cause.cause.replace("_", " "), class_="label")
    share = [bar(cause.confidence), tag("b", wording.percent(cause.confidence))]
    confidence = tag("p", share, kind, labels, class_="confidence")
    headline = tag("div", tag("p", cause.title, class_="title"), confidence, class_="headline")
    told = [_told("Evidence", cause.evidence), _told("What to do", [_with_commands(one) for one in cause.advice])]
    suspects = map(_suspect, cause.suspects[:_MAX_SUSPECTS])
    more = left_out(len(cause.suspects) - _MAX_SUSPECTS, " samples")
    return tag("article", headline, told, suspects, more, class_=class_)


def _with_commands(advice: str) -> Markup:
    """Mark text between backticks as a command."""
    parts = advice.split("`")
    if len(parts) % 2 == 0:
        return escape(advice)
    return group([tag("code", part) if place % 2 else part for place, part in enumerate(parts)])


def _told(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return tag("div", tag("h4", title), tag("ul", [tag("li", one) for one in sentences]), class_="told")


def _suspect(suspect: Suspect) -> Markup:
    loss = [] if suspect.loss is None else [f"loss {wording.number(suspect.loss)}"]
    caption = tag("figcaption", " · ".join([*wording.origin(suspect, suspect), *loss, f"rank {suspect.rank}"]))
    text = tag("pre", wording.shortened(suspect.text, _MAX_TEXT), class_="sample") if suspect.text else None
    return tag("figure", caption, text, class_="suspect")


def _replay(replay: ReplayResult) -> Markup:
    if replay.reproduced is None:
        result, tone = "Replayed; the run had recorded no loss to compare with", "calm"
    elif replay.reproduced:
        result, tone = "Replayed: the recorded loss came out again, bit for bit", "good"
    else:
        result, tone = "Replayed: another loss came out", "bad"
    recorded = "nothing" if replay.recorded_loss is None else repr(replay.recorded_loss)
    start = f"the state after update {replay.from_step:,}" if replay.from_step else "the beginning"
    losses = [tag("code", recorded), ", replayed: ", tag("code", repr(replay.replayed_loss)), "."]
    told = [tag("p", tag("span", result, class_=f"status {tone}")), tag("p", f"From {start}. Recorded: ", losses)]
    differences = tag("ul", [tag("li", one) for one in replay.differences]) if replay.differences else None
    return tag("div", tag("h3", "Replay"), told, differences)


def _experiments(experiments: tuple[Experiment, ...]) -> Markup:
    rows: list[list[Child]] = []
    for one in experiments:
        numbers = [tag("li", f"{name} {wording.number(value)}") for name, value in one.numbers.items()]
        rows.append([tag("b", one.question), one.done, one.found, tag("ul", numbers, class_="bare")])
    tried = table(("question", "done", "found", "numbers"), rows, class_="prose")
    return tag("div", tag("h3", "What was tried"), tried)


def tensors(verdicts: tuple[Verdict, ...]) -> Markup | None:
    """Render one table for each verdict that has tensor statistics."""
    found = [verdict for verdict in verdicts if verdict.modules]
    return tag("div", [_section(verdict) for verdict in found]) if found else None


def _section(verdict: Verdict) -> Markup:
    modules = verdict.modules
    shown: Child = _table(modules)
    if len(modules) > _MAX_OPEN:
        marked = [one for one in modules if is_outlying(one)]
        whole = tag("details", tag("summary", "All of them"), _table(modules[:_MAX_ROWS]))
        shown = [_table(marked[:_MAX_OPEN]) if marked else None, whole, left_out(len(modules) - _MAX_ROWS)]
    title = f"Tensors at step {verdict.step:,}"
    return section(title, tag("p", summary(modules)), shown, id=f"tensors-{verdict.step}")


def _table(modules: Sequence[ModuleStatistics]) -> Markup:
    columns = ("module", "of", "norm", "calm norm", "ratio", "", "max", "not finite")
    numbers = ("norm", "calm norm", "ratio", "max", "not finite")
    return table(columns, map(_row, modules), right=numbers, class_="tensors")


def _row(one: ModuleStatistics) -> list[Child]:
    times = ratio(one)
    tone = "bad" if is_outlying(one) else None
    # Logarithmic scale: half full means unchanged, empty a thousandth, full a thousand times as much.
    share = 0.0 if times is None or not times > 0 else 0.5 + math.log10(min(times, 1e3)) / 6
    shown = [None, None] if times is None else [tag("span", ratio_text(one), class_=tone), bar(share, "ratio")]
    bad = tag("span", wording.number(one.num_nonfinite), class_="bad") if one.num_nonfinite else None
    return [tag("code", one.module, class_=tone), one.kind, one.norm, one.calm_norm, *shown, one.max_abs, bad]


def ratio(one: ModuleStatistics) -> float | None:
    """Return the norm divided by the calm norm, or None if the latter is unknown."""
    if one.calm_norm is None or not one.calm_norm > 0:
        return None
    return one.norm / one.calm_norm


def ratio_text(one: ModuleStatistics) -> str:
    """Return the ratio with three digits; empty if unknown."""
    times = ratio(one)
    if times is None:
        return ""
    return f"{times:.3g}×" if math.isfinite(times) and times < 1e6 else wording.number(times)


def is_outlying(one: ModuleStatistics) -> bool:
    """Return whether the tensor is not finite or its norm is far from its calm norm."""
    times = ratio(one)
    return one.num_nonfinite > 0 or (times is not None and not 1 / OUTLYING < times < OUTLYING)


def summary(modules: tuple[ModuleStatistics, ...]) -> str:
    """Return a sentence with the number of tensors and how many stand out."""
    marked = sum(map(is_outlying, modules))
    standing = f"{marked:,} of them not finite, or" if marked else "all of them finite, and none"
    return f"{len(modules):,} tensors in the order of execution; {standing} beyond {OUTLYING:g} times its calm norm either way."
