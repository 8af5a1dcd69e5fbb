"""Samples with an outlying loss whose text shows nothing wrong."""

import math
from collections.abc import Sequence
from typing import Final

from sonde.forensics.causes.cause_rule import LOOK_AT_SAMPLES, CauseFinding, CauseRule
from sonde.forensics.causes.text_kind import describe_suspects, is_read
from sonde.forensics.evidence import Evidence
from sonde.forensics.samples_seen import SeenSample
from sonde.forensics.scene_evidence import SceneEvidence

_FAR: Final = 1.8
"""If such samples are this rare in a batch, as a power of ten, they are to blame in one case of
two.
"""
_SLOPE: Final = 2.25
_LEAST_Z: Final = 1.5
_LEAST_RARE: Final = 1.0
"""Samples with a lower z than `_LEAST_Z`, or less rare than this, are not suspects."""
_LEAST_SHARE: Final = 0.15
"""A suspect adds at least this fraction of what the worst one adds to the loss."""
_HIGH_Z: Final = 3.0
_FAR_Z: Final = 8.0
_IN_CALM: Final = 0.4
"""How much such a sample counts in a step whose loss is normal."""
_FEW: Final = 0.5
_OF_MANY: Final = 0.5
"""How much it counts that more than `_FEW` of the samples are high."""
_FEW_ROWS: Final = 0.1
_UNSURE: Final = 0.5
"""The most that it counts if the loss is normal, or if more than `_FEW_ROWS` of the samples are
high: batches of natural data are like that now and then.
"""
_WHOLE_Z: Final = 4.0
"""A batch whose samples together are this many deviations out is unusual as a whole."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge which samples are outliers, and whether they explain the loss."""
    is_event = evidence.case.is_loss_unusual
    is_high = is_event or evidence.case.loss_z > _HIGH_Z
    together = evidence.batch_z > (_WHOLE_Z if is_high else _FAR_Z)
    far = _outliers(evidence, together=together)
    if not far:
        return None
    tail = evidence.stands_out(far)
    score = 1 / (1 + math.exp(-_SLOPE * (tail - _FAR)))
    sentences = [describe_suspects(evidence, far)]
    if is_event or together:
        part = evidence.part_of(far)
        them = "it" if len(far) == 1 else "them"
        sentences.append(f"without {them} {part:.0%} of the loss above normal is gone")
        is_out = tail > 0 or together
        score = max(score * (0.4 + 0.6 * part), 0.7 * part if is_out else 0.0)
    state = evidence.state
    if state.earlier is not None and math.isfinite(state.earlier_own):
        sentences.append(
            f"at the weights after step {state.earlier} the loss of the batch is"
            f" {state.earlier_own:.3g}"
        )
    title = None
    if len(far) > _FEW * len(evidence.samples):
        # Not these samples, but something that they share: a kernel, a length, a wrong target.
        score *= _OF_MANY
        title = "Most of the batch has a high loss, and nothing about its samples says why."
    num_few = max(1, round(_FEW_ROWS * len(evidence.samples)))
    if not is_event or len(far) > num_few:
        score = min(score, _UNSURE)
    if evidence.case.is_calm:
        # There is no loss to explain, so a sample that merely is high explains nothing.
        score *= _IN_CALM
        title = "A sample is somewhat high; the step itself is calm."
    return CauseFinding(
        score=score * evidence.data_weight,
        evidence=sentences,
        suspects=evidence.suspects(far),
        title=title,
    )


def _outliers(evidence: Evidence, *, together: bool) -> list[SeenSample]:
    """Return the samples that stand out and that no sign of their text explains.

    If the samples stand out `together` and no few of them do alone, all that are a little high.
    """
    unread = [sample for sample in evidence.samples if not is_read(evidence, sample)]
    far = [seen for seen in unread if seen.z > _LEAST_Z and seen.rarity > _LEAST_RARE]
    if together and _excess_of(far) < 0.5 * _excess_of(evidence.samples):
        far = [seen for seen in unread if seen.z > 1]
    if not far:
        return []
    most = max(seen.excess for seen in far)
    # Next to a sample with an extreme loss, a slightly high one is not a suspect.
    return [seen for seen in far if not seen.excess < _LEAST_SHARE * most]


def _excess_of(samples: Sequence[SeenSample]) -> float:
    """Return how much samples add to the loss above what is usual."""
    return sum(max(sample.excess, 0.0) for sample in samples)


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge whether a few rows alone raise the loss."""
    blamed = scene.blamed_rows()
    if not blamed:
        return None
    sentences = scene.describe_rows(blamed)
    title = None
    if scene.metric == "sample":
        title = "A row stands out from rows of its length, and nothing about it says why."
    return CauseFinding(
        score=0.8, evidence=sentences, suspects=[row.suspect for row in blamed], title=title
    )


RULE: Final = CauseRule(
    title="Without these samples the loss is normal; nothing that can be seen is wrong with them.",
    advice=(LOOK_AT_SAMPLES,),
    blames="samples",
    family="sample",
    judge=judge,
    at_scene=judge_scene,
    in_doubt=(LOOK_AT_SAMPLES,),
)
