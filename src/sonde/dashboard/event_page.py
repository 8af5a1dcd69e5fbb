"""The page of one step: what was found out about it, with the curve around it; then its samples
with their text, its tensors, and the commands to run next.

Every kind of mark has this page (report/marks.py): a spike, a sample that stood out, a verdict, a
restart. A step of an earlier attempt has it too, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sonde.dashboard.folder import ListedRun, OpenRun
from sonde.dashboard.frame import commands, crumbs, document, here, run_address
from sonde.dashboard.replaying import Replaying, how_to_replay, next_commands
from sonde.dashboard.run_page import mark_address
from sonde.errors import RunNotFound, SondeError
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.records.layout import SPIKES, RunLayout
from sonde.report.facts import attempt_place, attempts, event_facts, open_decoder, read_verdicts
from sonde.report.html.events import event_list, event_samples
from sonde.report.html.markup import Child, Markup, note, section, tag
from sonde.report.html.verdicts import tensors, verdict_section
from sonde.report.marks import RESUMED, SUPERSEDED, Mark, read_marks, superseded
from sonde.spikes.spike_log import SpikeLog, read_spikes

AROUND: Final = 100
"""The curve shows this many steps before and after the step."""
_UNDONE: Final = (
    "Nothing: the run went back to before this step and made it again. What is shown here is of the"
    " first time."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attempt:
    """The run, or an earlier attempt of it, with what it recorded."""

    path: Path
    log: SpikeLog
    marks: Sequence[Mark]
    number: int = 0


def event_page(
    row: ListedRun, run: OpenRun, step: int, *, attempt: int = 0, allow_jobs: bool = False
) -> str:
    """Render the page of a step, or a note if nothing was recorded at it."""
    found = _open(run, attempt)
    marks = [mark for mark in found.marks if mark.step <= step <= mark.last]
    wrong = [mark for mark in marks if mark.is_wrong]
    known, problem = _verdict(found.path, step, wrong)
    body: list[Child] = [note(problem, "note bad")]
    if attempt:
        sentence = f"This is attempt {attempt} of the run, which was started over later."
        body.append(note(sentence, "note bad"))
    body.append(_what_happened(found, known, None if attempt else _curve(row, step)))
    if marks:
        body.append(section("Recorded", event_list(marks), class_="short"))
    elif known is None:
        sentence = f"No event was recorded at step {step:,}, and there is no verdict about it."
        body.append(note(sentence, "none"))
    body += [_samples(found, mark) for mark in _unexplained(wrong)]
    if known is not None:
        body.append(tensors(known))
    if wrong and all(SUPERSEDED in mark.note for mark in wrong):
        body.append(section("What to do next", note(_UNDONE)))
    elif not attempt:
        replaying = how_to_replay(run.path, row.summary.manifest, step)
        lines = _commands(found, step, replaying, known, wrong)
        body.append(_next(row.name, step, lines, replaying, allow_jobs=allow_jobs))
    way_back = crumbs(tag("a", row.name, href=run_address(row.name)), here(f"step {step:,}"))
    around = _neighbours(row.name, found.marks, step)
    head = tag("header", way_back, tag("h1", f"Step {step:,}"), around)
    shown = tag("div", body, id="event", data_live=True)
    return document(f"step {step} of {row.name}", head, shown, live=row.name)


def _what_happened(found: _Attempt, known: Verdict | None, curve: Markup | None) -> Markup | None:
    """Return the verdict with the curve beside it, or the curve alone."""
    if known is None:
        return curve
    remark = superseded(found.path, known.step, known.time)
    told = verdict_section(known, found.path, remark, copyable=True)
    return tag("div", told, curve, class_="beside")


def _unexplained(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks that samples may explain. A restart says itself what it lost."""
    return [mark for mark in marks if mark.kind != RESUMED]


def _commands(
    found: _Attempt, step: int, replaying: Replaying, known: Verdict | None, wrong: Sequence[Mark]
) -> list[tuple[str, str]]:
    return next_commands(
        found.path,
        step,
        replaying,
        has_verdict=known is not None,
        has_samples=_has_samples(found, step, wrong),
        is_explained=bool(wrong) and not _unexplained(wrong),
    )


def _has_samples(found: _Attempt, step: int, marks: Sequence[Mark]) -> bool:
    if any(spike.samples(step) for spike in found.log.spikes if step in spike.steps):
        return True
    return any(found.log.samples_at(mark.step) for mark in marks)


def _open(run: OpenRun, attempt: int) -> _Attempt:
    if not attempt:
        return _Attempt(path=run.path, log=run.spikes(), marks=run.marks())
    if attempt not in attempts(run.path):
        raise RunNotFound(f"the run has no attempt {attempt}")
    place = attempt_place(run.path, attempt)
    log = SpikeLog(spikes=(), datasets={}, num_bad=0)
    if RunLayout(place).record_files(SPIKES):
        log = read_spikes(place)
    marks = [
        replace(mark, attempt=attempt) for mark in read_marks(place, log, read_verdicts(place, []))
    ]
    return _Attempt(path=place, log=log, marks=marks, number=attempt)


def _verdict(run: Path, step: int, marks: Sequence[Mark]) -> tuple[Verdict | None, str]:
    """Return the verdict on this step or on another step of the same event, and a problem if it
    cannot be read.
    """
    known = [number for number, _ in RunLayout(run).verdicts()]
    event = {number for mark in marks for number in known if mark.step <= number <= mark.last}
    wanted = step if step in known else min(event, default=None)
    if wanted is None:
        return None, ""
    try:
        return read_verdict(run, wanted), ""
    except SondeError as error:
        return None, error.message


def _curve(row: ListedRun, step: int) -> Markup:
    """Return the place of the curve around the step, which the script draws. It ends where the run
    ends, because the script shows as many steps as it is asked for.
    """
    last = step + AROUND if row.step is None else max(min(step + AROUND, row.step), step)
    place = tag(
        "div",
        note("Reading the curve …", "none"),
        id="curves",
        data_run=row.name,
        data_from=max(step - AROUND, 0),
        data_to=last,
    )
    return tag("section", place, class_="around", aria_label=f"loss around step {step}")


def _samples(found: _Attempt, mark: Mark) -> Child:
    facts = event_facts(mark, found.log, open_decoder(found.path, found.log))
    if facts.samples:
        return tag("section", event_samples(facts), class_="samples")
    return note(facts.problem or "The samples of this step were not recorded.")


def _neighbours(name: str, marks: Sequence[Mark], step: int) -> Markup:
    before = [mark for mark in marks if mark.is_wrong and mark.step < step]
    after = [mark for mark in marks if mark.is_wrong and mark.step > step]
    links = []
    if before:
        text = f"previous: {before[-1].kind}, step {before[-1].step:,}"
        links.append(tag("a", text, href=mark_address(name, before[-1]), rel="prev"))
    if after:
        text = f"next: {after[0].kind}, step {after[0].step:,}"
        links.append(tag("a", text, href=mark_address(name, after[0]), rel="next"))
    span = {"from": str(max(step - AROUND, 0)), "to": str(step + AROUND)}
    around = run_address(name, **span)
    return tag("p", tag("a", "see it in all curves", href=around), links, class_="links")


def _next(
    name: str,
    step: int,
    lines: Sequence[tuple[str, str]],
    replaying: Replaying,
    *,
    allow_jobs: bool,
) -> Markup | None:
    work = None
    if allow_jobs and not replaying.problem:
        jobs = [
            tag(
                "button",
                text,
                type="button",
                data_job=kind,
                data_run=name,
                data_step=step,
                data_script=replaying.script or None,
            )
            for text, kind in (("Diagnose", "diagnose"), ("Replay", "replay"))
            if any(line.startswith(f"sonde {kind} ") for _, line in lines)
        ]
        output = tag("pre", "", class_="log", id="job-output", hidden=True, tabindex="0")
        work = tag("div", jobs, output, class_="jobs")
    shown = commands(lines) if lines else None
    return section("What to do next", note(replaying.problem), shown, work)
