"""What counts as noticed, named, misleading and silent: pure functions from what a user gets.

A user gets what the training printed, the events and first verdicts in the run, the verdict of
`sonde diagnose`, and the answer of `sonde check`. Nothing here opens a file or starts a process.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from benchmarks.field_cases.answers import (
    BLAMES_SAMPLES,
    EVENTS,
    INFORMATION,
    NOTHING,
    RESTORED,
    RESUME_LINES,
    SAMPLE_CAUSES,
    UNKNOWN,
    names_of,
)
from benchmarks.field_cases.declaration import Case

WINDOW: Final = 30
"""A failure is noticed if it is within so many steps of its onset."""
NAMED: Final = 0.5
"""A cause is said from this confidence on."""
SURE: Final = 0.7
"""From this confidence on, "nothing wrong" is a claim."""

ONE_BATCH: Final = ("data", "rows")
"""The classes of failures that lie in one batch."""

_LOGGER: Final = r"^(?:[A-Z]+:sonde[\w.]*:(?:sonde: )?|sonde: )"
"""How a line of sonde's begins: with the name of its logger, or with its own."""
_STEP_LINE: Final = re.compile(_LOGGER + r"step (\d+): ")
_OWN_LINE: Final = re.compile(r"^(?:(?:WARNING|ERROR):sonde[\w.]*:|sonde: )")
_RESUMED: Final = re.compile(_LOGGER + r"resumed at step (\d+)")
_REPORT_LINE: Final = re.compile(r"^\s{2,}(\w+(?: \w+)?)\s{2,}(\S.*)$")


class Said(NamedTuple):
    """A cause that a verdict puts first."""

    cause: str
    confidence: float


class Gotten(NamedTuple):
    """All that a user gets from one case."""

    printed: str = ""
    """What the training processes wrote to the screen."""
    events: tuple[Mapping[str, Any], ...] = ()
    """The document of `sonde spikes --json`."""
    first_verdicts: tuple[Mapping[str, Any], ...] = ()
    """The verdicts that were in the run before anybody asked."""
    verdict: Mapping[str, Any] | None = None
    """The document of `sonde diagnose --json`; None if it refused."""
    refusal: str = ""
    """Why `sonde diagnose` refused."""
    check: Mapping[str, Any] | None = None
    """The document of `sonde check --json`; None if there is none."""
    notices: tuple[str, ...] = ()
    """The checks that the recorder told of during training, by name; their sentences are among what
    was printed.
    """
    crashed: str = ""
    """The end of what a training process wrote that failed."""
    seconds: float = 0.0


class Outcome(NamedTuple):
    """How one case is counted."""

    case: str
    noticed: bool
    named: bool
    misled: tuple[str, ...]
    """The answers and sentences that mislead; for a control, those given when asked."""
    alarms: tuple[str, ...]
    """For a control: what was said of it unasked."""
    said: str
    """The first cause of the last verdict and its confidence, or the refusal."""

    @property
    def silent(self) -> bool:
        """Whether nothing was said at all."""
        return not (self.noticed or self.named or self.misled)


def first_cause(verdict: Mapping[str, Any] | None) -> Said | None:
    """Return what a verdict puts first."""
    if not verdict or not verdict.get("causes"):
        return None
    first = verdict["causes"][0]
    return Said(str(first["cause"]), float(first["confidence"]))


def problem_lines(printed: str) -> Iterator[tuple[int | None, str]]:
    """Yield each line of sonde's on the screen that tells of a problem, with its step if any."""
    for line in printed.splitlines():
        about_step = _STEP_LINE.match(line)
        if about_step:
            yield int(about_step[1]), line
        elif _is_problem(line):
            yield None, line


def resume_complaints(printed: str) -> dict[str, str]:
    """Return the causes that resume reports on the screen name, each with its line."""
    found: dict[str, str] = {}
    is_report = False
    for line in printed.splitlines():
        if _RESUMED.match(line):
            is_report = True
            continue
        match = _REPORT_LINE.match(line) if is_report else None
        if match is None:
            is_report = False
            continue
        cause = RESUME_LINES.get(match[1].lower())
        is_complaint = not any(words in match[2] for words in RESTORED)
        if cause is not None and is_complaint:
            found[cause] = line.strip()
    return found


def wrong_checks(check: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the checks that say "wrong"."""
    if check is None:
        return []
    return [str(row["name"]) for row in check.get("results", ()) if row.get("status") == "wrong"]


def count(case: Case, gotten: Gotten) -> Outcome:
    """Count one case."""
    verdicts = [*gotten.first_verdicts]
    if gotten.verdict is not None:
        verdicts.append(gotten.verdict)
    return Outcome(
        case=case.name,
        noticed=not case.is_control and _is_noticed(case, gotten),
        named=not case.is_control and _is_named(case, gotten),
        misled=tuple(_misleading(case, gotten, verdicts)),
        alarms=tuple(_alarms(case, gotten)) if case.is_control else (),
        said=_said(gotten),
    )


def _is_noticed(case: Case, gotten: Gotten) -> bool:
    if wrong_checks(gotten.check) or resume_complaints(gotten.printed):
        return True
    for step, _ in problem_lines(gotten.printed):
        if step is None or _is_in_time(case, step):
            return True
    return bool(list(_events_in_time(case, gotten)))


def _events_in_time(case: Case, gotten: Gotten) -> Iterator[Mapping[str, Any]]:
    for event in gotten.events:
        # A single sample that stands out has a step instead of a span.
        step = event.get("first_step", event.get("step"))
        if step is not None and _is_in_time(case, int(step)):
            yield event


def _names_of_event(event: Mapping[str, Any]) -> set[str]:
    """What an event names by its kind or its metric, as that of a quiet failure does."""
    words = (str(event.get("kind", "")), str(event.get("metric", "")))
    return {EVENTS.get(word, word) for word in words}


def _is_in_time(case: Case, step: int) -> bool:
    return case.onset <= step <= case.onset + WINDOW


def _is_named(case: Case, gotten: Gotten) -> bool:
    accepted = names_of(case.accepted)
    if accepted & {*wrong_checks(gotten.check), *gotten.notices}:
        return True
    if accepted & set(resume_complaints(gotten.printed)):
        return True
    for event in _events_in_time(case, gotten):
        if accepted & _names_of_event(event):
            return True
    last = _last_verdict(gotten)
    said = first_cause(last)
    is_said = said is not None and said.cause in accepted and said.confidence >= NAMED
    if is_said and last is not None and _is_about(case, last):
        return True
    # Where nobody could see the failure, not to blame anything is right.
    return not case.visible and not _claims_something(said)


def _last_verdict(gotten: Gotten) -> Mapping[str, Any] | None:
    if gotten.verdict is None and gotten.first_verdicts:
        return gotten.first_verdicts[-1]
    return gotten.verdict


def _is_about(case: Case, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict speaks of a step of the failure: a bad row lies in one batch, anything else
    lasts.
    """
    step = int(verdict["step"])
    if case.class_ in ONE_BATCH:
        return _is_in_time(case, step)
    return step >= case.onset


def _claims_something(last: Said | None) -> bool:
    if last is None or last.cause in UNKNOWN:
        return False
    least = SURE if last.cause in NOTHING else NAMED
    return last.confidence >= least


def _misleading(case: Case, gotten: Gotten, verdicts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield every answer and sentence that leads a user astray."""
    fair = names_of(case.accepted) | names_of(case.also_true)
    for verdict in verdicts:
        said = first_cause(verdict)
        if said is None:
            continue
        fair_here = fair if _is_about(case, verdict) else frozenset[str]()
        is_calm = not case.is_control and _is_false_calm(said)
        if is_calm or _is_false_blame(said, fair_here):
            yield f"{said.cause} {said.confidence:.2f} of step {verdict['step']}"
    if case.is_control:
        return
    for cause in resume_complaints(gotten.printed):
        if cause not in fair:
            yield cause
    for name in {*wrong_checks(gotten.check), *gotten.notices}:
        if name not in fair:
            yield name
    if not fair & SAMPLE_CAUSES:
        for _, line in problem_lines(gotten.printed):
            if any(words in line.lower() for words in BLAMES_SAMPLES):
                yield line


def _is_false_calm(said: Said) -> bool:
    return said.cause in NOTHING and said.confidence >= SURE


def _is_false_blame(said: Said, fair: frozenset[str]) -> bool:
    is_blame = said.cause not in NOTHING | UNKNOWN | fair
    return is_blame and said.confidence >= NAMED


def _alarms(case: Case, gotten: Gotten) -> Iterator[str]:
    """Yield what was said of a control although nobody asked."""
    fair = names_of(case.also_true)
    for _, line in problem_lines(gotten.printed):
        yield line
    for verdict in gotten.first_verdicts:
        said = first_cause(verdict)
        if said is not None and said.cause not in NOTHING | fair:
            yield f"{said.cause} {said.confidence:.2f}"
    for cause, line in resume_complaints(gotten.printed).items():
        if cause not in fair:
            yield line
    for name in wrong_checks(gotten.check):
        if name not in fair:
            yield f"check: {name}"


def _said(gotten: Gotten) -> str:
    said = first_cause(gotten.verdict)
    if said is not None:
        return f"{said.cause} {said.confidence:.2f}"
    return f"refused: {gotten.refusal}" if gotten.refusal else ""


def _is_problem(line: str) -> bool:
    """Whether a line of sonde's without a step tells of a problem; a resume report has its own."""
    prefix = _OWN_LINE.match(line)
    if prefix is None or _RESUMED.match(line):
        return False
    text = line[prefix.end() :].removeprefix("sonde: ")
    return not any(text.startswith(words) or text.endswith(words) for words in INFORMATION)
