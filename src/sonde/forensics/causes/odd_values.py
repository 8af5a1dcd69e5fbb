"""Rows without text whose values are unlike those of the other rows: far from them, constant, or
labelled unlike their neighbours.
"""

from typing import Final

from sonde.forensics.causes.cause_rule import LOOK_AT_SAMPLES, CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence

_NEARLY_ALL: Final = 0.8
"""If more rows than this fraction are odd, the data have changed."""
_ALL_ROWS: Final = "All rows of the batch hold values unlike those of the batches before."
_CHANGED_DATA: Final = (
    "Look at what changed in the data from here on: another file, another unit, another scaling.",
)


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge nothing: the values of rows are looked at where the batch is, at the scene."""
    del evidence
    return None


def judge_scene(scene: SceneEvidence) -> CauseFinding | None:
    """Judge whether the rows that alone raise the loss have odd values, or all rows of a batch."""
    if scene.num_odd_rows > _NEARLY_ALL * scene.num_rows > 0 and scene.is_this_batch_high:
        odd = [row for row in scene.rows if row.oddity]
        sentences = [
            scene.describe_batch(),
            f"{scene.num_odd_rows} of {scene.num_rows} rows are unlike those of the batches before",
            *(f"sample {row.name}: {row.oddity}" for row in odd[:1]),
        ]
        return CauseFinding(score=0.85, evidence=sentences, title=_ALL_ROWS, advice=_CHANGED_DATA)
    blamed = [row for row in scene.blamed_rows() if row.oddity]
    if not blamed:
        return None
    sentences = scene.describe_rows(blamed)
    sentences += [f"sample {row.name}: {row.oddity}" for row in blamed]
    return CauseFinding(score=0.85, evidence=sentences, suspects=[row.suspect for row in blamed])


RULE: Final = CauseRule(
    title="Rows hold values unlike those of the other rows.",
    advice=(
        "Look at these rows: `sonde spikes RUN --step {step}`.",
        "Look at how they are read and scaled.",
    ),
    blames="samples",
    family="text",
    judge=judge,
    at_scene=judge_scene,
    in_doubt=(LOOK_AT_SAMPLES,),
)
