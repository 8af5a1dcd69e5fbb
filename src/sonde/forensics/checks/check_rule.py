"""The definition of a check: its question, what the answer means, what to do, and how it judges
what was measured.

Every other module of this package has one or more `Check`s, and `__init__.py` lists them. `judge`
is a pure function: it takes plain numbers that an experiment measured (`recorder/checking/`) and
returns an `Outcome`. No torch is needed here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

Status = Literal["wrong", "cannot tell", "does not apply", "fine"]
"""What a check may come to."""
STATUSES: Final[tuple[Status, ...]] = ("wrong", "cannot tell", "does not apply", "fine")
"""In the order in which they are shown."""


class Outcome(NamedTuple):
    """What a judge says."""

    status: Status
    text: str
    """One or two sentences with the figures; for the middle two, why."""


def fine(text: str) -> Outcome:
    """Return that nothing is wrong."""
    return Outcome("fine", text)


def wrong(text: str) -> Outcome:
    """Return that something is wrong."""
    return Outcome("wrong", text)


def does_not_apply(why: str) -> Outcome:
    """Return that the question makes no sense for this training."""
    return Outcome("does not apply", why)


def cannot_tell(why: str) -> Outcome:
    """Return that the experiment could not decide."""
    return Outcome("cannot tell", why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One question about a training, and how its answer is judged."""

    name: str
    """Its name, which never changes."""
    title: str
    """What it looks at, in a few words."""
    question: str
    """What it asks."""
    meaning: str
    """What it means if something is wrong."""
    advice: str
    """What to do then."""
    applies_to: str
    """The trainings that it applies to."""
    judge: Callable[[Any], Outcome]
    """Judges what its experiment measured."""
    follows_from: tuple[str, ...] = ()
    """The checks whose mistakes make this one fail too: if one of them is wrong, this one cannot
    tell.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The answer to one check."""

    name: str
    """The name of the check."""
    title: str
    """What it looked at."""
    status: Status
    """What it came to."""
    text: str
    """The answer in words, with its figures."""
    advice: str
    """What to do; empty unless something is wrong."""


def result_of(check: Check, measured: object) -> CheckResult:
    """Judge what was measured. An `Outcome` in its place says why nothing could be measured."""
    outcome = measured if isinstance(measured, Outcome) else check.judge(measured)
    return CheckResult(
        name=check.name,
        title=check.title,
        status=outcome.status,
        text=outcome.text,
        advice=check.advice if outcome.status == "wrong" else "",
    )


def without_consequences(
    checks: Sequence[Check], results: Sequence[CheckResult]
) -> list[CheckResult]:
    """Return the results of checks, without mistakes that only follow from others."""
    titles = {result.name: result.title for result in results if result.status == "wrong"}
    found = []
    for check, result in zip(checks, results, strict=True):
        reasons = [titles[name] for name in check.follows_from if name in titles]
        if result.status == "wrong" and reasons:
            result = result_of(check, cannot_tell(f"See {reasons[0]}. {result.text}"))
        found.append(result)
    return found


def counted(num: int, noun: str) -> str:
    """Return a number of things in words: 1 parameter, 2 parameters."""
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    if 0 < share < 0.01:
        return f"{100 * share:.2g} %"
    if 0.99 < share < 1:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.0f} %"


def some(names: "tuple[str, ...] | list[str]", limit: int = 3) -> str:
    """Return the first few of some names, and how many more there are."""
    shown = ", ".join(names[:limit])
    more = len(names) - limit
    return f"{shown} and {more} more" if more > 0 else shown
