"""The resume report: what of a training is as it was when its checkpoint was written, and what is
not. The machine and versions are not here but in forensics/changes.py. Needs no torch.

    resumed at step 200 from out/checkpoint-200; not restored: moments, rate
      moments      EMPTY (128 of 128 tensors): the state of the optimizer was not loaded
      rate         9.8e-05, was 0.0015: the schedule began again
      as before    weights, data, generators, mode, trainable

A finding has one of five statuses:

    same        it is as it was
    changed     it is not, and somebody may have wanted that: a fact
    lost        it was not restored: an alarm
    unknown     it cannot be told
    expected    it is not as it was, and the user said so before

The report of every restart is in the events of the run; `read_reports` returns them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from sonde.records.journal import read_events

EVENT: Final = "resume_report"
"""The event in which a run records the report of a restart."""
Status = Literal["same", "changed", "lost", "unknown", "expected"]
SAME: Final = "same"
CHANGED: Final = "changed"
LOST: Final = "lost"
UNKNOWN: Final = "unknown"
EXPECTED: Final = "expected"
WEIGHTS: Final = "weights"
MOMENTS: Final = "moments"
STEP_COUNT: Final = "step count"
RATE: Final = "rate"
SCHEDULE: Final = "schedule"
SCALER: Final = "scaler"
DATA: Final = "data"
GENERATORS: Final = "generators"
MODE: Final = "mode"
TRAINABLE: Final = "trainable"
RANKS: Final = "ranks"
PARTS: Final = (
    *(WEIGHTS, MOMENTS, STEP_COUNT, RATE, SCHEDULE),
    *(SCALER, DATA, GENERATORS, MODE, TRAINABLE, RANKS),
)
"""What is compared, in the order of the report."""
_ORDER: Final = (LOST, CHANGED, UNKNOWN, EXPECTED, SAME)
"""The statuses, worst first."""
_NUM_LISTED: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is known about one part of the state."""

    what: str
    """One of `PARTS`."""
    status: Status
    text: str
    """What was found, in words."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The numbers behind it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeReport:
    """What a restart restored, and what it did not."""

    step: int
    """The number of updates from which the recorder counts on; 0 if it counts from 1 again."""
    from_step: int
    """The number of updates after which the state was saved that it claims to go on from."""
    claim: str
    """Why this is a resume: "number" (somebody said the step), "step count" or "weights"."""
    path: str = ""
    """The checkpoint, if its place is known."""
    findings: Sequence[Finding] = ()

    @property
    def lost(self) -> list[Finding]:
        """What was not restored."""
        return [finding for finding in self.findings if finding.status == LOST]

    def finding(self, what: str) -> Finding | None:
        """Return the finding about one part; None if the training has no such part."""
        return next((finding for finding in self.findings if finding.what == what), None)

    def accepting(self, parts: Collection[str]) -> "ResumeReport":
        """Return the report with the changes of these parts as expected ones. A rate comes from a
        schedule, and moments have a step count: each is accepted with the other.
        """
        accepted = set(parts)
        for pair in ({RATE, SCHEDULE}, {MOMENTS, STEP_COUNT}):
            if accepted & pair:
                accepted |= pair
        findings = []
        for finding in self.findings:
            is_other = finding.status in (CHANGED, LOST)
            if is_other and finding.what in accepted:
                finding = replace(finding, status="expected")
            findings.append(finding)
        return replace(self, findings=findings)

    def lines(self) -> list[str]:
        """Return the report in lines: one if everything is as it was."""
        head = f"resumed at step {self.from_step:,}"
        if self.path:
            head += f" from {self.path}"
        not_same = [finding for finding in self.findings if finding.status != SAME]
        same = [finding.what for finding in self.findings if finding.status == SAME]
        is_well = all(finding.status == UNKNOWN for finding in not_same)
        if is_well and self.step == self.from_step:
            return [f"{head}: {_all_well(same, not_same)}"]
        if self.lost:
            head += f"; not restored: {', '.join(finding.what for finding in self.lost)}"
        rows = [(finding.what, _words(finding)) for finding in not_same]
        return [head, *(f"  {name:<12} {text}" for name, text in [*rows, *self._remarks(same)])]

    def _remarks(self, same: Sequence[str]) -> list[tuple[str, str]]:
        """Return the last lines of the report: what is as it was, and what can be done."""
        rows = []
        if same:
            rows.append(("as before", ", ".join(same)))
        if self.step != self.from_step:
            advice = f"recorder.num_updates = {self.from_step} goes on counting"
            rows.append(("steps", f"counted from {self.step + 1:,} again; {advice}"))
        others = [finding.what for finding in self.findings if finding.status in (LOST, CHANGED)]
        if others:
            rows.append(("on purpose?", f"RecorderOptions(expect={tuple(others)}) accepts it"))
        return rows

    def text(self) -> str:
        """Return the report as it is printed."""
        return "\n".join(self.lines())

    def as_details(self) -> dict[str, Any]:
        """Return the report as the details of an event."""
        details: dict[str, Any] = msgspec.to_builtins(self)
        return details


def without(report: ResumeReport, parts: Collection[str]) -> ResumeReport:
    """Return a report without the findings about some parts."""
    kept = [finding for finding in report.findings if finding.what not in parts]
    return replace(report, findings=kept)


def merged(of_ranks: Sequence[Mapping[str, Any]]) -> ResumeReport:
    """Return the reports of all ranks, given as details, as one: the worst finding counts. That a
    rank cannot tell is no finding if another can.
    """
    reports = [msgspec.convert(details, ResumeReport, strict=False) for details in of_ranks]
    worst = {finding.what: finding for finding in reports[0].findings}
    for rank, report in enumerate(reports[1:], 1):
        for finding in report.findings:
            known = worst.get(finding.what)
            if finding.status == UNKNOWN:
                continue
            if known is None or _ORDER.index(finding.status) < _ORDER.index(known.status):
                text = f"on rank {rank}: {finding.text}"
                worst[finding.what] = replace(finding, text=text)
    findings = sorted(worst.values(), key=lambda finding: PARTS.index(finding.what))
    return replace(reports[0], findings=findings)


def _all_well(same: Sequence[str], unknown: Sequence[Finding]) -> str:
    if not unknown:
        return "everything as it was"
    sentences = "; ".join(f"{finding.what}: {finding.text}" for finding in unknown)
    if not same:
        return sentences
    return f"everything else as it was; {sentences}"


def _words(finding: Finding) -> str:
    return f"{finding.text} (expected)" if finding.status == EXPECTED else finding.text


def read_reports(run: str | Path) -> list[ResumeReport]:
    """Return the reports of a run's restarts, oldest first; damaged ones are left out."""
    found = []
    for record in read_events(Path(run), EVENT):
        try:
            found.append(msgspec.convert(record, ResumeReport, strict=False))
        except msgspec.ValidationError:
            continue
    return found


def listed(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are."""
    shown = ", ".join(names[:_NUM_LISTED])
    more = len(names) - _NUM_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def share(part: int, whole: int, noun: str) -> str:
    """Return how many of all: `2 of 12 tensors`."""
    return f"{part:,} of {whole:,} {noun}{'' if whole == 1 else 's'}"


def is_close(value: float, other: float, tolerance: float = 1e-6) -> bool:
    """Return whether two numbers are the same but for rounding."""
    return abs(value - other) <= tolerance * max(abs(value), abs(other))
