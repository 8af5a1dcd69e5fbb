"""Earlier weights were restored: they are close to an older checkpoint again, or the step's loss is bit-identical to theirs."""

from functools import partial
from typing import Final

from sonde.forensics.causes.rule import GO_BACK, Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.replay import Replay
from sonde.forensics.tensor_test import older_checkpoints

_SAME: Final = 1e-6


def judge(evidence: Evidence) -> Finding | None:
    """Judge whether the weights are back where they were."""
    for test in evidence.tensors:
        if test.stale is not None:
            nearer = (
                f"the weights in the checkpoint after update {test.after} are nearer to those after update {test.stale}"
            )
            told = [f"{nearer} than those after update {test.before} were: training moves them away", test.where]
            return Finding(score=0.95, evidence=told, bad_checkpoint=test.after)
    record = evidence.diverged_at
    if record is None:
        return None
    for older in older_checkpoints(evidence.lab, record.step):
        words = f"the weights after update {older}"
        change = partial(Replay.load_weights, step=older)
        loss = evidence.lab.made_again(record.step, change=change, words=words, record=record)
        if abs(loss - record.loss) <= _SAME * abs(record.loss):
            told = [
                f"step {record.step} with {words} gives the recorded loss, {record.loss:.6g}; with the weights it should have had it does not"
            ]
            return Finding(score=0.97, evidence=told)
    return None


RULE: Final = Rule(
    title="Weights of an earlier time were put back.",
    advice=(GO_BACK, "Look at what loads, averages or swaps weights during training."),
    blames="tensor",
    family="state",
    judge=judge,
)
