"""Failures without a jump, as causes: what the recorder noticed and recorded. One line each in
`_KINDS`.
"""

from functools import partial
from typing import Final

from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.records.journal import read_events
from sonde.spikes import label_order, quiet_rules, rank_signs, rows_again, update_size

_SCORE: Final = 0.93
"""It was seen as it is: what remains open is whether it was meant."""


def judge(evidence: Evidence, kind: str) -> CauseFinding | None:
    """Judge whether such a failure was recorded at the step."""
    for record in read_events(evidence.case.run, quiet_rules.QUIET_FAILURE):
        if record.get("kind") == kind and record.get("step") == evidence.case.step:
            return CauseFinding(score=_SCORE, evidence=[str(record.get("sentence"))])
    return None


_KINDS: Final = {
    quiet_rules.COLLAPSE: (
        "The loss fell far below where it had settled.",
        "Check that the model cannot see its targets: `sonde check -- python train.py`.",
    ),
    quiet_rules.NO_PROGRESS: (
        "The training makes no progress.",
        "Look for what does not learn: `sonde check -- python train.py`.",
    ),
    quiet_rules.SAME_LOSS: (
        "The loss is exactly the same, step after step.",
        "Check that the weights change, and that every step gets another batch.",
    ),
    quiet_rules.NO_GRADIENT: (
        "There are no gradients.",
        "Check that the loss depends on the model: look for detach and no_grad.",
    ),
    quiet_rules.FADING_GRADIENT: (
        "The gradients have faded away.",
        "Look at the activations for dead or saturated units, and at the size of the weights.",
    ),
    quiet_rules.NO_RATE: (
        "The learning rate is 0.",
        "Look at where the schedule ends, and whether it is stepped once per update.",
    ),
    quiet_rules.RATE_OFF_COURSE: (
        "The learning rate left its course.",
        "Look at the schedule: how many steps it was made for, and who else sets the rate.",
    ),
    update_size.UPDATE_SIZE: (
        "The updates are of another size than usual.",
        "Look at the optimizer: moments that were lost, settings that changed.",
    ),
    quiet_rules.SAME_BATCH: (
        "The same batch comes again and again.",
        "Look at the loader: an iterator made anew at every step, a sampler that stands still.",
    ),
    quiet_rules.SCALER_SKIPS: (
        "The gradient scaler skips update after update.",
        "Find the gradient that is not finite at any scale; train in bfloat16 or float32.",
    ),
    quiet_rules.NO_OPTIMIZER_STEP: (
        "The optimizer is not called.",
        "Call optimizer.step() in every update; where `last` is passed, when it is true.",
    ),
    rank_signs.RANKS_DRIFT: (
        "The weights are not the same on all ranks.",
        "Check that every rank makes every update with averaged gradients, then go back.",
    ),
    label_order.LABEL_ORDER: (
        "The data are sorted by class.",
        "Shuffle the data: shuffle=True, or a buffer to shuffle a stream in.",
    ),
    rows_again.ROWS_AGAIN: (
        "Rows come again while others have not come once.",
        "Look at the loader: every worker and every rank must read a part of the data of its own.",
    ),
}
"""For each kind: the cause in a sentence, and what to do."""

RULES: Final = {
    kind: CauseRule(
        title=title,
        advice=(advice,),
        blames="setting",
        family="setting",
        needs="records",
        judge=partial(judge, kind=kind),
    )
    for kind, (title, advice) in _KINDS.items()
}
"""The rules of these causes, by name."""
