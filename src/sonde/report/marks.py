"""Everything that happened in a run, as one list of marks: spikes, samples that stood out,
verdicts, healing, restarts.

    marks = read_marks(run, read_spikes(run), verdicts)
    marks[0].step, marks[0].kind, marks[0].title, marks[0].cause

A mark has a step, a word for its kind, and a sentence. A verdict belongs to the mark whose steps it
is about; without one it is a mark of its own. What comes from the run's events (records/journal.py)
is made by a function of `_FROM_EVENTS`: a new kind of event is one entry there. An event without
an entry is a mark too if its record has a `step` and a text as `title`; `last_step`, `value`,
`expected` and `z` are shown if they are there.

If a run went back to before a mark's step later, the mark says so: its step was made again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec

from sonde.checkpoint.resume_report import CHANGED, LOST, ResumeReport
from sonde.checkpoint.resume_report import EVENT as RESUME_REPORT
from sonde.forensics.verdict import SURE, Verdict
from sonde.heal.decision import EVENT as HEAL
from sonde.heal.decision import Act, describe_action
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.reader import Record, read_records
from sonde.records.values import as_number
from sonde.report import wording
from sonde.spikes.spike_log import RankedSample, RecordedSpike, SpikeLog

HAPPENED: Final = "happened"
"""The tone of what was done to a run: a restart, a rollback. It is shown, and not counted."""
WRONG: Final = "wrong"
"""The tone of what went wrong, or may have: it is counted as an event."""
SAMPLE: Final = "sample"
"""The kind of a step in which single samples stood out."""
RESTART: Final = "restart"
"""The kind of a step from which a run was resumed."""
VERDICT: Final = "verdict"
"""The kind of a verdict about a step at which nothing else was recorded."""
RESUMED: Final = "resume report"
"""The kind of a restart that did not restore everything."""
SUPERSEDED: Final = "superseded"
"""How the note of a mark begins whose step was made again later."""
_MAX_STEP: Final = 2**53
_MAX_TITLE: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One thing that happened in a run."""

    kind: str
    """One word: `spike`, `sample`, `verdict`, `resume`, …"""
    step: int
    """The step at which it began."""
    last: int
    """Its last step."""
    title: str
    """What happened, in a short sentence."""
    tone: str = WRONG
    """`WRONG` or `HAPPENED`."""
    time: float = math.nan
    """When it happened, in seconds since the epoch."""
    metric: str = ""
    """The name of the number that was out of the ordinary."""
    value: float = math.nan
    """That number."""
    expected: float = math.nan
    """What was expected."""
    z: float = math.nan
    """How many deviations it was above that."""
    peak: float = math.nan
    """The highest number of the event."""
    peak_step: int = 0
    """The step of the peak."""
    cause: str = ""
    """The most likely cause in a sentence, if there is a verdict."""
    confidence: float = math.nan
    """The confidence in the cause."""
    note: str = ""
    """Remarks."""
    attempt: int = 0
    """The earlier attempt that it belongs to; 0 is the current one."""

    @property
    def is_wrong(self) -> bool:
        """Whether it counts as an event."""
        return self.tone == WRONG


def read_marks(
    run: Path,
    spikes: SpikeLog,
    verdicts: Sequence[Verdict],
    repeated: Sequence[tuple[int, int]] = (),
) -> list[Mark]:
    """Return everything that happened in a run, ordered by step. `repeated` are the first and the
    last step of each stretch that was recorded again after a restart.
    """
    records = _event_records(run)
    marks = [_spike_mark(spike) for spike in spikes.spikes]
    known = {step for mark in marks for step in (mark.step, mark.last)}
    for step, samples in groupby(spikes.samples, key=lambda sample: sample.step or 0):
        if step not in known:
            marks.append(_sample_mark(step, list(samples)))
    marks = _with_verdicts(marks, verdicts)
    marks = [_with_return(mark, records) for mark in marks]
    for record in records:
        mark = _event_mark(record)
        if mark is not None:
            marks.append(mark)
    restarts = {mark.step for mark in marks if mark.kind == RESTART}
    for first, last in repeated:
        if first - 1 not in restarts:  # a loop that says nothing when it resumes
            title = f"restarted: steps {first:,} to {last:,} were repeated"
            marks.append(
                Mark(kind=RESTART, step=first - 1, last=first - 1, title=title, tone=HAPPENED)
            )
    return sorted(marks, key=lambda mark: (mark.step, mark.tone == HAPPENED))


def worst_marks(marks: Sequence[Mark], num: int) -> list[Mark]:
    """Return at most `num` marks in order of steps, those that went farthest wrong if there are
    more: those with a sure cause first, then losses before single samples.
    """
    if len(marks) <= num:
        return list(marks)

    def rank(mark: Mark) -> tuple[bool, bool, bool, float]:
        # A cause that is sure comes first, and a loss before single samples: these often follow.
        far = math.inf if math.isnan(mark.z) else mark.z
        return not mark.is_wrong, not mark.confidence >= SURE, mark.kind == SAMPLE, -far

    return sorted(sorted(marks, key=rank)[:num], key=lambda mark: mark.step)


def _event_records(run: Path) -> list[Record]:
    """Return the events of rank 0, oldest first; other ranks repeat them."""
    path = RunLayout(run).record_file(EVENTS, 0)
    return list(read_records(path)) if path.exists() else []


def _spike_mark(spike: RecordedSpike) -> Mark:
    event = spike.event
    metric = event.metric.replace("_", " ")
    title = f"{metric} {wording.number(event.value)}"
    if not math.isnan(event.baseline):
        title += f", expected {wording.number(event.baseline)}"
    notes = []
    if spike.num_seen > 1:
        notes.append(f"seen {spike.num_seen} times")
    if spike.is_over is False:
        notes.append("not over when recording ended")
    return Mark(
        kind=event.kind,
        step=event.first_step,
        last=event.last_step,
        title=title,
        time=spike.time,
        metric=event.metric,
        value=event.value,
        expected=event.baseline,
        z=event.z,
        peak=event.peak,
        peak_step=event.peak_step,
        note=", ".join(notes),
    )


def _sample_mark(step: int, samples: Sequence[RankedSample]) -> Mark:
    worst = max(samples, key=lambda sample: _far(sample.z))
    title = f"{wording.counted(len(samples), 'sample')} stood out"
    if worst.loss is not None and worst.expected is not None:
        title += f": loss {wording.number(worst.loss)}, expected {wording.number(worst.expected)}"
    return Mark(
        kind=SAMPLE,
        step=step,
        last=step,
        title=title,
        time=_number(worst.time),
        metric="sample loss",
        value=_number(worst.loss),
        expected=_number(worst.expected),
        z=_number(worst.z),
    )


def _far(z: float | None) -> float:
    return math.inf if z is None or math.isnan(z) else z


def _number(value: Any) -> float:
    found = as_number(value)
    return math.nan if found is None else found


def _with_verdicts(marks: Sequence[Mark], verdicts: Sequence[Verdict]) -> list[Mark]:
    found = list(marks)
    for verdict in verdicts:
        if not verdict.causes:
            continue
        first = verdict.causes[0]
        for place, mark in enumerate(found):
            if mark.step <= verdict.step <= mark.last:
                found[place] = replace(mark, cause=first.title, confidence=first.confidence)
                break
        else:
            mark = Mark(
                kind=VERDICT,
                step=verdict.step,
                last=verdict.step,
                title="a verdict about this step",
                time=verdict.time or math.nan,
            )
            if verdict.names_a_cause:
                mark = replace(mark, cause=first.title, confidence=first.confidence)
            else:  # somebody asked, and nothing was found: no event
                title = f"{first.title} ({wording.percent(first.confidence)})"
                mark = replace(mark, title=title, tone=HAPPENED)
            found.append(mark)
    return found


def returned_to(records: Iterable[Record], step: int, time: float) -> int | None:
    """Return the step to which the run went back after `time`, if that is before `step`."""
    found = None
    for record in records:
        if record.get("event") not in ("resume", "rollback") or not _number(record["time"]) > time:
            continue
        place = record.get("checkpoint" if record["event"] == "rollback" else "step")
        if isinstance(place, int) and place < step:
            found = place
    return found


def superseded(run: Path, step: int, time: float) -> str:
    """Return a sentence if the run went back to before a step after `time`; else an empty text."""
    place = returned_to(_event_records(run), step, time)
    if place is None:
        return ""
    return f"{SUPERSEDED}: the run went back to step {place:,} later"


def _with_return(mark: Mark, records: Sequence[Record]) -> Mark:
    place = returned_to(records, mark.step, mark.time)
    if place is None:
        return mark
    sentence = f"{SUPERSEDED}: the run went back to step {place:,}"
    return replace(mark, note=f"{mark.note}, {sentence}" if mark.note else sentence)


def _event_mark(record: Record) -> Mark | None:
    """Return the mark of an event of the run; None if it has none, or is damaged."""
    make = _FROM_EVENTS.get(str(record.get("event")), _titled)
    try:
        mark = make(record)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError):
        return None
    return mark if mark is not None and 0 <= mark.step < _MAX_STEP else None


def _titled(record: Record) -> Mark | None:
    """Return the mark of an event whose record says itself what it is."""
    step = record.get("step")
    title = record.get("title")
    if type(step) is not int or not isinstance(title, str):
        return None
    last = record.get("last_step")
    return Mark(
        kind=str(record["event"]).replace("_", " ")[:40],
        step=step,
        last=last if type(last) is int and last >= step else step,
        title=wording.shortened(title, _MAX_TITLE),
        time=_number(record.get("time")),
        metric=str(record.get("metric", "")),
        value=_number(record.get("value")),
        expected=_number(record.get("expected")),
        z=_number(record.get("z")),
    )


def _done(record: Record, step: Any, kind: str, title: str) -> Mark | None:
    if type(step) is not int:
        return None
    time = _number(record.get("time"))
    return Mark(kind=kind, step=step, last=step, title=title, time=time, tone=HAPPENED)


def _resume(record: Record) -> Mark | None:
    step = record.get("step")
    return _done(record, step, RESTART, f"resumed after step {wording.number(step)}")


def _resume_report(record: Record) -> Mark | None:
    """Return what a restart did not restore; nothing if everything is as it was."""
    report = msgspec.convert(record, ResumeReport, strict=False)
    complaints = [finding for finding in report.findings if finding.status in (LOST, CHANGED)]
    if not complaints:
        return None
    sentences = "; ".join(f"{finding.what}: {finding.text}" for finding in complaints)
    title = f"{'not restored' if report.lost else 'changed'} at the restart: {sentences}"
    return Mark(
        kind=RESUMED,
        step=report.step,
        last=report.step,
        title=wording.shortened(title, _MAX_TITLE),
        time=_number(record.get("time")),
        tone=WRONG if report.lost else HAPPENED,
    )


def _rollback(record: Record) -> Mark | None:
    to = wording.number(record.get("checkpoint"))
    return _done(record, record.get("step"), "rollback", f"rolled back to step {to}")


def _skip(record: Record) -> Mark | None:
    samples = record.get("samples")
    num = 0
    if isinstance(samples, Mapping):
        num = sum(len(numbers) for numbers in samples.values() if isinstance(numbers, list))
    title = f"{wording.counted(num, 'sample')} added to the skip list"
    return _done(record, record.get("step"), "skip list", title)


def _skipped(record: Record) -> Mark | None:
    title = f"update skipped: {wording.shortened(str(record.get('reason')), _MAX_TITLE)}"
    return _done(record, record.get("step"), "skipped update", title)


def _heal(record: Record) -> Mark | None:
    phase = record.get("phase")
    if phase not in ("act", "would"):
        return None
    act = msgspec.convert(record.get("act"), Act)
    _, _, done, _ = describe_action(act, would=phase == "would")
    return Mark(
        kind="healing",
        step=act.call.first_step,
        last=max(act.call.step, act.call.first_step),
        title=done,
        time=_number(record.get("time")),
        tone=HAPPENED,
        metric="loss",
        value=act.call.value,
        expected=act.call.baseline,
        cause=act.title,
        confidence=act.confidence if act.title else math.nan,
    )


def _nothing(_: Record) -> None:
    return None


_FROM_EVENTS: Final[dict[str, Callable[[Record], Mark | None]]] = {
    "resume": _resume,
    RESUME_REPORT: _resume_report,
    "rollback": _rollback,
    "skip": _skip,
    "skipped": _skipped,
    HEAL: _heal,
    "stop": _nothing,
}
"""What makes a mark of an event, by the event's name. A new kind of event is one entry."""
