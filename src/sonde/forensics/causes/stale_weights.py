"""Earlier weights were restored: they are close to an older checkpoint again, or the step's loss is
bit-identical to theirs.
"""

import math
from functools import partial
from typing import Final

from sonde.forensics.case import is_close
from sonde.forensics.causes.cause_rule import GO_BACK, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.replay import Replay
from sonde.forensics.tensor_test import older_checkpoints


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the weights are back where they were."""
    for test in evidence.tensors:
        if test.stale is not None:
            nearer = (
                f"the weights in the checkpoint after step {test.after} are nearer to those after"
                f" step {test.stale}"
            )
            sentences = [
                f"{nearer} than those after step {test.before} were: training moves them away",
                test.where,
            ]
            return CauseFinding(score=0.95, evidence=sentences, bad_checkpoint=test.after)
    record = evidence.diverged_at
    if record is None:
        return None
    for older in older_checkpoints(evidence.lab, record.step):
        if older == record.step - 1:
            continue  # these are the weights that it should have had
        words = f"the weights after step {older}"
        change = partial(Replay.load_weights, step=older)
        loss = evidence.lab.replay_with(record.step, change=change, words=words, record=record)
        if math.isfinite(loss) and is_close(loss, record.loss):
            sentences = [
                (
                    f"step {record.step} with {words} gives the recorded loss, {record.loss:.6g};"
                    " with the weights it should have had it does not"
                )
            ]
            return CauseFinding(score=0.97, evidence=sentences)
    return None


RULE: Final = CauseRule(
    title="Weights of an earlier time were put back.",
    advice=(GO_BACK, "Look at what loads, averages or swaps weights during training."),
    blames="tensor",
    family="state",
    judge=judge,
)
