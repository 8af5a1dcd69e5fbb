"""The optimizer's state: moments that no gradients can have produced, or moments that were lost."""

import math
from typing import Final

import torch

from sonde.forensics.case import is_close
from sonde.forensics.causes.cause_rule import GO_BACK, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.replay import Replay
from sonde.forensics.tensor_test import TensorTest

_LOST: Final = "The optimizer's state was lost: its moments began anew."


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether it is in a checkpoint or happened in memory."""
    for test in evidence.tensors:
        found = _blown(test) or _fallen(test)
        if found is not None:
            return found
    return _lost_in_memory(evidence)


def _blown(test: TensorTest) -> CauseFinding | None:
    if not test.moments:
        return None
    worst = test.moments[0]
    sentences = [
        (
            f"{worst.num_elements} first moments of {worst.name} are up to {worst.ratio:.3g} times"
            " larger than their second moments allow"
        ),
        test.where,
    ]
    return CauseFinding(
        score=0.95, evidence=sentences, module=worst.name, bad_checkpoint=test.after
    )


def _fallen(test: TensorTest) -> CauseFinding | None:
    if not test.fallen and test.steps is None:
        return None
    sentences = []
    if test.fallen:
        name, share = max(test.fallen, key=lambda one: one[1])
        sentences.append(
            f"the second moments of {len(test.fallen)} of {test.num_moments} parameters are smaller"
            f" than decay can have made them: {share:.0%} of the elements of {name}"
        )
    if test.steps is not None:
        sentences.append(
            f"the optimizer had counted {test.steps[0]:.0f} steps and later {test.steps[1]:.0f}"
        )
    module = test.fallen[0][0] if len(test.fallen) == 1 else None
    return CauseFinding(
        score=0.95,
        evidence=[*sentences, test.where],
        module=module,
        bad_checkpoint=test.after,
        title=_LOST,
    )


def _lost_in_memory(evidence: Evidence) -> CauseFinding | None:
    """Judge whether losing the moments just before the step gives the recorded loss."""
    record = evidence.diverged_at
    if record is None or record.step - 1 <= evidence.lab.from_step:
        return None
    before = f"before step {record.step - 1}"
    for change, words in (
        (_forget, "an optimizer that had forgotten everything"),
        (_zero, "moments of zero"),
    ):
        loss = evidence.lab.replay_with(
            record.step - 1, change=change, words=f"{words} {before}", record=record
        )
        if math.isfinite(loss) and is_close(loss, record.loss):
            sentence = (
                f"with {words} {before}, step {record.step} gives the recorded loss,"
                f" {record.loss:.6g}; as it should have been it does not"
            )
            return CauseFinding(score=0.97, evidence=[sentence], title=_LOST)
    return None


def _forget(replay: Replay) -> None:
    replay.optimizer.state.clear()


def _zero(replay: Replay) -> None:
    for state in replay.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "step":
                value.zero_()


RULE: Final = CauseRule(
    title="The optimizer's state holds values that no gradients can have made.",
    advice=(GO_BACK, "Check what saves, loads, shards or converts the optimizer's state."),
    blames="tensor",
    family="state",
    judge=judge,
)
