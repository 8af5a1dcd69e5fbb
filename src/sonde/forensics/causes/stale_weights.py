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
    for test in (evidence.tensors, evidence.tensors_after):
        if test is not None and test.stale is not None:
            nearer = (
                f"the weights in the checkpoint after update {test.after} are nearer to those after update {test.stale}"
            )
            told = [f"{nearer} than those after update {test.before} were: training moves them away", test.where]
            return Finding(score=0.95, evidence=told, bad_checkpoint=test.after)
    step = evidence.made.first_off
    if not evidence.made.is_off or step is None or step not in evidence.case.steps:
        return None
    recorded = evidence.case.steps[step].loss
    for older in older_checkpoints(evidence.lab, step):
        words = f"the weights after update {older}"
        loss = evidence.lab.made_again(step, change=partial(Replay.load_weights, step=older), words=words, until=step)
        if abs(loss - recorded) <= _SAME * abs(recorded):
            told = [
                f"step {step} with {words} gives the recorded loss, {recorded:.6g}; with the weights it should have had it does not"
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
