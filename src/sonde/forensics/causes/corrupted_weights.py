"""Weights that moved further than updates can move them."""

import math
from typing import Final

from sonde.forensics.causes.cause_rule import GO_BACK, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.history import read_starts
from sonde.forensics.tensor_test import TensorTest

_SAME_SIZE: Final = 0.9
"""A tensor whose norm has at least this fraction of another is about as large."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the starting checkpoint has such a tensor, or the one after a step whose replay
    diverged.
    """
    for test in evidence.tensors:
        if test.weights and test.stale is None:
            return _found(evidence, test)
    return None if evidence.has_bad_tensors else _not_as_made(evidence)


def _not_as_made(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the state before the step is what the steps before it make, although no weight
    moved too far.
    """
    is_resumed = evidence.lab.from_step in {step for step, _, _ in read_starts(evidence.case.run)}
    is_bad = evidence.is_state_bad and not evidence.made.differs
    if not is_resumed and not is_bad:
        return None  # it does not matter
    remade = evidence.lab.remade_checkpoint()
    if remade is None or not remade.others:
        return None
    first = remade.others[0]
    sentences = [
        (
            f"the steps {remade.before + 1} to {remade.step} again give the recorded losses to the"
            f" bit, but {len(remade.others)} of {remade.num_tensors} parameters are other ones"
            f" after them; the first is {first}"
        )
    ]
    if not _SAME_SIZE < remade.growth < 1 / _SAME_SIZE:
        sentences.append(f"its norm is {remade.growth:.3g} times what the steps make it")
    title = f"Something other than the optimizer changed the weights after step {remade.step}."
    if is_resumed:
        title = "The run resumed from a checkpoint that is not what training had made."
    return CauseFinding(
        score=0.93,
        evidence=sentences,
        module=first if len(remade.others) == 1 else None,
        bad_checkpoint=remade.step,
        title=title,
    )


def _found(evidence: Evidence, test: TensorTest) -> CauseFinding:
    worst = test.weights[0]
    sentences = [
        (
            f"{worst.num_elements} elements of {worst.name} moved up to {worst.ratio:.3g} times as"
            " far as updates can move them"
        ),
        (
            f"one went from {worst.before:.3g} to {worst.worst:.3g} in {test.after - test.before}"
            " steps"
        ),
        test.where,
    ]
    # Blown-up moments also change the weights, which are then not the cause.
    score = 0.4 if test.moments else 0.93
    if not test.moments and test.after == evidence.lab.from_step and evidence.is_state_bad:
        loss = evidence.lab.with_tensor_of(worst.name, test.before)
        bad = evidence.state.here.median
        sentences.append(
            f"with it as it was after step {test.before} the loss of other batches is {loss:.4g}"
            f" instead of {bad:.4g}"
        )
        gone = not math.isfinite(bad) or bad - loss > 0.5 * (bad - evidence.case.losses.median)
        score = 0.97 if math.isfinite(loss) and gone else 0.85
    return CauseFinding(
        score=score, evidence=sentences, module=worst.name, bad_checkpoint=test.after
    )


RULE: Final = CauseRule(
    title="Weights moved farther than updates can move them.",
    advice=(
        GO_BACK,
        "Test the memory and the disk of the machine, and whatever else writes to the weights.",
    ),
    blames="tensor",
    family="state",
    judge=judge,
)
