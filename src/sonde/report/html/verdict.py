"""What diagnoses found: causes in order of confidence, the evidence, the suspects, what was tried."""

from collections.abc import Sequence
from typing import Final

from sonde.forensics.verdict import Cause, Experiment, ReplayResult, Suspect, Verdict
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, escape, group, table, tag

_MAX_SUSPECTS: Final = 10
_MAX_TEXT: Final = 1200


def verdicts(found: tuple[Verdict, ...]) -> Markup | None:
    """One section for each step that was diagnosed."""
    return tag("div", [_verdict(one) for one in found]) if found else None


def _verdict(verdict: Verdict) -> Markup:
    first, *others = verdict.causes or (None,)
    made = [wording.moment(verdict.time)] if verdict.time else []
    made += [f"took {wording.duration(verdict.seconds)}"] if verdict.seconds else []
    return tag(
        "section",
        tag("h2", f"What happened at step {verdict.step:,}"),
        _cause(first, class_="cause first") if first is not None else None,
        tag("div", tag("h3", "Less likely"), [_cause(one) for one in others]) if others else None,
        _replay(verdict.replay) if verdict.replay is not None else None,
        _experiments(verdict.experiments) if verdict.experiments else None,
        tag("p", "Diagnosis of ", ", ".join(made), class_="note") if made else None,
        class_="verdict",
        id=f"verdict-{verdict.step}",
    )


def _cause(cause: Cause, class_: str = "cause") -> Markup:
    points_at = {
        "module": cause.module,
        "rank": None if cause.rank is None else str(cause.rank),
        "setting": cause.setting,
    }
    return tag(
        "article",
        tag(
            "div",
            tag("p", cause.title, class_="title"),
            tag(
                "p",
                bar(cause.confidence),
                tag("b", wording.percent(cause.confidence)),
                tag("span", cause.cause.replace("_", " "), class_="label"),
                [
                    tag("span", f"{name} ", tag("code", text), class_="label")
                    for name, text in points_at.items()
                    if text
                ],
                class_="confidence",
            ),
            class_="headline",
        ),
        _told("Evidence", cause.evidence),
        _told("What to do", [_with_commands(one) for one in cause.advice]),
        [_suspect(one) for one in cause.suspects[:_MAX_SUSPECTS]],
        tag("p", f"and {len(cause.suspects) - _MAX_SUSPECTS} more samples", class_="note")
        if len(cause.suspects) > _MAX_SUSPECTS
        else None,
        class_=class_,
    )


def _with_commands(advice: str) -> Markup:
    """What stands between backticks is a command."""
    parts = advice.split("`")
    if len(parts) % 2 == 0:
        return escape(advice)
    return group([tag("code", part) if place % 2 else part for place, part in enumerate(parts)])


def _told(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return tag("div", tag("h4", title), tag("ul", [tag("li", one) for one in sentences]), class_="told")


def _suspect(suspect: Suspect) -> Markup:
    where = f"{suspect.file}:{suspect.line}" if suspect.line is not None else suspect.file
    facts = [
        f"{suspect.dataset} {suspect.sample}".strip(),
        f"document {suspect.document}" if suspect.document is not None else "",
        f"loss {wording.number(suspect.loss)}" if suspect.loss is not None else "",
        where,
        f"rank {suspect.rank}",
    ]
    return tag(
        "figure",
        tag("figcaption", " · ".join(fact for fact in facts if fact)),
        tag("pre", wording.shortened(suspect.text, _MAX_TEXT), class_="sample") if suspect.text else None,
        class_="suspect",
    )


def _replay(replay: ReplayResult) -> Markup:
    if replay.reproduced is None:
        result, tone = "Replayed; the run had recorded no loss to compare with", "calm"
    elif replay.reproduced:
        result, tone = "Replayed: the recorded loss came out again, bit for bit", "good"
    else:
        result, tone = "Replayed: another loss came out", "bad"
    recorded = "nothing" if replay.recorded_loss is None else repr(replay.recorded_loss)
    start = f"the state after update {replay.from_step:,}" if replay.from_step else "the beginning"
    return tag(
        "div",
        tag("h3", "Replay"),
        tag("p", tag("span", result, class_=f"status {tone}")),
        tag(
            "p",
            f"From {start}. Recorded: ",
            tag("code", recorded),
            ", replayed: ",
            tag("code", repr(replay.replayed_loss)),
            ".",
        ),
        tag("ul", [tag("li", one) for one in replay.differences]) if replay.differences else None,
    )


def _experiments(experiments: tuple[Experiment, ...]) -> Markup:
    rows: list[list[Child]] = [
        [
            tag("b", one.question),
            one.done,
            one.found,
            tag(
                "ul",
                [tag("li", f"{name} {wording.number(value)}") for name, value in one.numbers.items()],
                class_="bare",
            ),
        ]
        for one in experiments
    ]
    return tag(
        "div", tag("h3", "What was tried"), table(("question", "done", "found", "numbers"), rows, class_="prose")
    )
