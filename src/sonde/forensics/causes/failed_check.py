"""A mistake that a check found in the first updates of the run, as a cause: one line each in
`_CHECKS`.

The recorder looks at the first updates of every training (recorder/checking) and tells what is
wrong. What it told explains later events better than anything that follows from it.
"""

from functools import partial
from typing import Final

from sonde.forensics.causes.cause_rule import Blames, CauseFinding, CauseRule
from sonde.forensics.checks import (
    connection,
    counted_positions,
    data_order,
    precision,
    stale_casts,
    step_habits,
)
from sonde.forensics.checks.check_rule import Check
from sonde.forensics.evidence import Evidence
from sonde.records.journal import RECORDER_NOTICE, read_events

_SCORE: Final = 0.93
"""It was seen as it is: what remains open is whether it did this."""


def judge(evidence: Evidence, name: str) -> CauseFinding | None:
    """Judge whether the recorder told that a check found a mistake, which held at the step."""
    for record in read_events(evidence.case.run, RECORDER_NOTICE):
        holds = int(record.get("since") or 0) <= evidence.case.step
        if holds and record.get("what") == f"check {name}":
            message = str(record.get("message")).removeprefix("sonde: ")
            return CauseFinding(score=_SCORE, evidence=[message])
    return None


_CHECKS: Final[tuple[tuple[Check, str, Blames], ...]] = (
    (step_habits.LEFT_OVER, "Gradients are not cleared between updates.", "setting"),
    (step_habits.MODE, "The model is trained in evaluation mode.", "setting"),
    (connection.MEMBERS, "The optimizer does not hold all that is trained.", "setting"),
    (counted_positions.COUNTED, "Targets that should count do not.", "samples"),
    (data_order.REPEATED, "The same rows come again and again.", "setting"),
    (precision.EPSILON, "The optimizer's epsilon is 0 in the precision of the weights.", "setting"),
    (stale_casts.CHECK, "Autocast uses casts of the weights as they were before.", "setting"),
)
"""The checks of the first updates: the cause in a sentence, and what it blames."""

RULES: Final = {
    check.name: CauseRule(
        title=title,
        advice=(check.advice,),
        blames=blames,
        family="setting",
        needs="records",
        judge=partial(judge, name=check.name),
    )
    for check, title, blames in _CHECKS
}
"""The rules of these causes, by name."""
