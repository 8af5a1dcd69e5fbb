"""The parts of a page about verdicts: causes, the replay, experiments, and tensors."""

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sonde.forensics.verdict import (
    Cause,
    Experiment,
    ModuleStatistics,
    ReplayResult,
    Suspect,
    Verdict,
)
from sonde.report import wording
from sonde.report.html.markup import (
    Child,
    Markup,
    bar,
    group,
    left_out,
    moment,
    note,
    section,
    table,
    tag,
)
from sonde.report.marks import SUPERSEDED, Mark

_MAX_LINES: Final = 12
_MAX_SUSPECTS: Final = 10
_MAX_SUSPECT_TEXT: Final = 1200
_MAX_ROWS: Final = 600
_MAX_OPEN: Final = 40
OUTLYING: Final = 4.0
"""A norm stands out if it is more than this factor above or below its calm norm."""


def verdict_lines(
    marks: Sequence[Mark], address: Callable[[Mark], str] | None = None
) -> Markup | None:
    """Render the causes of the newest events that have a verdict, a line each; with `address`, the
    step links there. A spike and its healing share a verdict, which is rendered once.
    """
    known: dict[tuple[int, str], Mark] = {}
    for mark in marks:
        if mark.cause:
            known.setdefault((mark.step, mark.cause), mark)
    rows = []
    for mark in list(known.values())[-_MAX_LINES:]:
        step: Child = f"Step {mark.step:,}"
        if address is not None:
            step = tag("a", step, href=address(mark))
        sure = "" if math.isnan(mark.confidence) else f" ({wording.percent(mark.confidence)})"
        undone = tag("span", f" {SUPERSEDED}", class_="note") if SUPERSEDED in mark.note else None
        rows.append(tag("li", step, ": ", tag("b", mark.cause), sure, undone))
    return section("Verdicts", tag("ul", rows, class_="plain"), class_="short") if rows else None


def verdict_section(
    verdict: Verdict, run: Path, remark: str = "", *, copyable: bool = False
) -> Markup:
    """Render the verdict on one step of the run in the directory `run`. With `copyable`, commands
    have a button for the script of the page, unless a `remark` says that the step is superseded:
    its advice was for then.
    """
    first, *others = verdict.causes
    advice = "What it advised then" if remark else "What to do"
    copyable = copyable and not remark
    parts: list[Child] = [
        note(remark, "note bad"),
        _cause(first, run, advice, copyable, class_="cause first"),
    ]
    if others:
        rest = [_cause(cause, run, advice, copyable) for cause in others]
        count = wording.counted(len(others), "less likely cause")
        parts.append(tag("details", tag("summary", count), rest))
    if verdict.replay is not None:
        parts.append(_replay(verdict.replay))
    if verdict.experiments:
        parts.append(_experiments(verdict.experiments))
    made: list[Child] = ["Diagnosis of ", moment(verdict.time)] if verdict.time else []
    if made and verdict.seconds:
        made.append(f", took {wording.duration(verdict.seconds)}")
    parts.append(tag("p", made, class_="note") if made else None)
    return section(
        f"What happened at step {verdict.step:,}",
        parts,
        class_="verdict",
        id=f"verdict-{verdict.step}",
    )


def _cause(cause: Cause, run: Path, advice: str, copyable: bool, class_: str = "cause") -> Markup:
    rank = None if cause.rank is None else str(cause.rank)
    points_at = {"module": cause.module, "rank": rank, "setting": cause.setting}
    labels = [
        tag("span", f"{name} ", tag("code", text), class_="label")
        for name, text in points_at.items()
        if text
    ]
    kind = tag("span", cause.cause.replace("_", " "), class_="label")
    share = [bar(cause.confidence), tag("b", wording.percent(cause.confidence))]
    confidence = tag("p", share, kind, labels, class_="confidence")
    headline = tag("div", tag("h3", cause.title, class_="title"), confidence, class_="headline")
    sentences = [
        _describe("Evidence", cause.evidence),
        _describe(advice, [_with_commands(line, run, copyable) for line in cause.advice]),
    ]
    suspects = map(_suspect, cause.suspects[:_MAX_SUSPECTS])
    more = left_out(len(cause.suspects) - _MAX_SUSPECTS, " samples")
    return tag("article", headline, sentences, suspects, more, class_=class_)


def _with_commands(advice: str, run: Path, copyable: bool) -> Markup:
    """Return advice with its commands as code, about this run."""
    place = shlex.quote(str(run))
    parts: list[Child] = []
    for number, part in enumerate(advice.split("`")):
        if number % 2 == 0:
            parts.append(part)
            continue
        command = part.replace(" RUN", f" {place}") if part.startswith("sonde ") else part
        parts.append(tag("code", command))
        if copyable and part.startswith("sonde "):
            label = f"copy: {command}"
            parts += [
                " ",
                tag("button", "copy", type="button", data_copy=command, aria_label=label),
            ]
    return group(parts)


def _describe(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return tag(
        "div",
        tag("h4", title),
        tag("ul", [tag("li", sentence) for sentence in sentences]),
        class_="told",
    )


def _suspect(suspect: Suspect) -> Markup:
    facts = wording.origin(suspect, suspect)
    if suspect.loss is not None:
        facts.append(f"loss {wording.number(suspect.loss)}")
    facts.append(f"rank {suspect.rank}")
    caption = tag("figcaption", " · ".join(facts))
    text = None
    if suspect.text:
        text = tag("pre", wording.shortened(suspect.text, _MAX_SUSPECT_TEXT), class_="sample")
    return tag("figure", caption, text, class_="suspect")


def _replay(replay: ReplayResult) -> Markup:
    result, tone = {
        None: ("Replayed; the run had recorded no loss to compare with", "calm"),
        True: ("Replayed: the recorded loss came out again, bit for bit", "good"),
        False: ("Replayed: another loss came out", "bad"),
    }[replay.reproduced]
    recorded = "nothing" if replay.recorded_loss is None else repr(replay.recorded_loss)
    start = f"the state after step {replay.from_step:,}" if replay.from_step else "the beginning"
    losses = [tag("code", recorded), ", replayed: ", tag("code", repr(replay.replayed_loss)), "."]
    sentences = [
        tag("p", tag("span", result, class_=f"status {tone}")),
        tag("p", f"From {start}. Recorded: ", losses),
    ]
    differences = None
    if replay.differences:
        differences = tag("ul", [tag("li", difference) for difference in replay.differences])
    return tag("div", tag("h3", "Replay"), sentences, differences)


def _experiments(experiments: tuple[Experiment, ...]) -> Markup:
    rows: list[list[Child]] = []
    for experiment in experiments:
        numbers = [
            tag("li", f"{name.replace('_', ' ')} {wording.number(value)}")
            for name, value in experiment.numbers.items()
        ]
        rows.append(
            [
                tag("b", experiment.question),
                experiment.done,
                experiment.found,
                tag("ul", numbers, class_="bare"),
            ]
        )
    tried = table(("question", "done", "found", "numbers"), rows, class_="prose")
    return tag("div", tag("h3", "What was tried"), tried)


def tensors(verdict: Verdict) -> Markup | None:
    """Render the tensor statistics of a verdict, if it has any."""
    modules = verdict.modules
    if not modules:
        return None
    shown: Child = _modules(modules)
    if len(modules) > _MAX_OPEN:
        marked = [module for module in modules if is_outlying(module)]
        whole = tag("details", tag("summary", "All of them"), _modules(modules[:_MAX_ROWS]))
        shown = [
            _modules(marked[:_MAX_OPEN]) if marked else None,
            whole,
            left_out(len(modules) - _MAX_ROWS),
        ]
    title = f"Tensors at step {verdict.step:,}"
    return section(title, tag("p", summary(modules)), shown, id=f"tensors-{verdict.step}")


def _modules(modules: Sequence[ModuleStatistics]) -> Markup:
    columns = ("module", "of", "norm", "calm norm", "ratio", "", "max", "not finite")
    numbers = ("norm", "calm norm", "ratio", "max", "not finite")
    return table(columns, map(_module_row, modules), right=numbers, class_="tensors")


def _module_row(module: ModuleStatistics) -> list[Child]:
    times = ratio(module)
    tone = "bad" if is_outlying(module) else None
    # Logarithmic scale: half full means unchanged, empty a thousandth, full a thousand times as
    # much.
    share = 0.0 if times is None or not times > 0 else 0.5 + math.log10(min(times, 1e3)) / 6
    times_cell: Child = None
    bar_cell: Child = None
    if times is not None:
        times_cell = tag("span", ratio_text(module), class_=tone)
        bar_cell = bar(share, "ratio")
    bad_cell: Child = None
    if module.num_nonfinite:
        bad_cell = tag("span", wording.number(module.num_nonfinite), class_="bad")
    return [
        tag("code", module.module, class_=tone),
        module.kind,
        module.norm,
        module.calm_norm,
        times_cell,
        bar_cell,
        module.max_abs,
        bad_cell,
    ]


def ratio(module: ModuleStatistics) -> float | None:
    """Return the norm divided by the calm norm, or None if the latter is unknown."""
    if module.calm_norm is None or not module.calm_norm > 0:
        return None
    return module.norm / module.calm_norm


def ratio_text(module: ModuleStatistics) -> str:
    """Return the ratio with three digits; empty if unknown."""
    times = ratio(module)
    if times is None:
        return ""
    return f"{times:.3g}×" if math.isfinite(times) and times < 1e6 else wording.number(times)


def is_outlying(module: ModuleStatistics) -> bool:
    """Return whether the tensor is not finite or its norm is far from its calm norm."""
    times = ratio(module)
    return module.num_nonfinite > 0 or (times is not None and not 1 / OUTLYING < times < OUTLYING)


def summary(modules: tuple[ModuleStatistics, ...]) -> str:
    """Return a sentence with the number of tensors and how many stand out."""
    marked = sum(map(is_outlying, modules))
    standing = f"{marked:,} of them not finite, or" if marked else "all of them finite, and none"
    return (
        f"{len(modules):,} tensors in the order of execution; {standing} beyond {OUTLYING:g} times"
        " its calm norm either way."
    )
