"""The replayed step gives a different loss: a transient hardware error, or something
non-deterministic.
"""

import math
from typing import Final

from sonde.data.skip_list import sample_name
from sonde.forensics.causes import data_order, optimizer_state, stale_weights
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence

_LEAST_FAR: Final = 1e-3
"""Sample losses that differ by less are equal up to rounding."""
_OF_A_SCRIPT: Final = 0.5
"""The score in a loop of one's own, which may change the training outside of its step function."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether the replay diverged without a known explanation."""
    made = evidence.made
    case = evidence.case
    if not made.differs or evidence.change is not None:
        return None
    sentences = [
        (
            f"{made.result.recorded_loss:.6g} was recorded, and made again the loss is"
            f" {made.result.replayed_loss:.6g}"
        )
    ]
    if made.num_exact:
        sentences.append(
            f"the {made.num_exact} steps before it, since the checkpoint, are the same to the bit"
        )
    rank, sample = _differing(evidence)
    sentences += [sample] if sample else []
    known = [
        difference
        for difference in made.result.differences
        if not difference.startswith(("the loss is another", "the code's"))
    ]
    sentences += [f"not as it was: {difference}" for difference in known]
    score = 0.45 if known else 0.8
    if made.num_exact:
        score = 0.93
    if not evidence.lab.replay.is_whole:
        sentences.append(
            "a replay runs the script's step function only: what its loop changes between steps is"
            " not made again"
        )
        score = min(score, _OF_A_SCRIPT)
    if _is_explained(evidence, score):
        score = 0.2
    if case.manifest.world_size > 1 and not case.recorded_samples():
        score = min(score, 0.5)
    return CauseFinding(score=score, evidence=sentences, rank=rank)


def _is_explained(evidence: Evidence, score: float) -> bool:
    """Return whether another cause explains the difference better than this one with a score."""
    if evidence.has_bad_tensors:
        return True
    for rule in (data_order.RULE, optimizer_state.RULE, stale_weights.RULE):
        finding = rule.judge(evidence)
        if finding is not None and finding.score > score:
            return True
    return False


def _differing(evidence: Evidence) -> tuple[int | None, str]:
    """Return the rank and the sample whose recorded loss differs most from the replayed one."""
    recorded = evidence.case.recorded_sample_losses()
    if not recorded:
        return (0 if evidence.case.manifest.world_size == 1 else None), ""
    found: list[tuple[float, int, str]] = []
    for seen in evidence.samples:
        before = recorded.get(seen.row.name)
        loss = seen.sample.loss
        if before is not None and loss is not None:
            far = abs(before - loss) if math.isfinite(before) else math.inf
            sentence = (
                f"the loss of sample {sample_name(*seen.row.name)} was {before:.4g} then and is"
                f" {loss:.4g} now"
            )
            found.append((far, seen.rank, sentence))
    if not found:
        return None, ""
    far, rank, sentence = max(found)
    return (rank, sentence) if far > _LEAST_FAR else (None, "")


RULE: Final = CauseRule(
    title=(
        "The same step made again gives another loss: the machine, or something that is not"
        " deterministic."
    ),
    advice=(
        (
            "Resume from the checkpoint before; if it happens again, on the same rank, replace that"
            " machine."
        ),
        "Test memory and processor of the named rank.",
        (
            "In a loop of your own, look first at what changes between steps: callbacks, layers"
            " that are unfrozen, weights that are averaged or loaded."
        ),
    ),
    blames="machine",
    family="machine",
    judge=judge,
)
