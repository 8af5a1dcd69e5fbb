"""The definition of a cause: its texts, what it blames, what it needs, and how it judges the
evidence.

Every other module in this package has one `CauseRule`, named RULE, and `__init__.py` lists them.
`judge` asks the evidence of records and a replay, `at_scene` that of the scene; a rule without the
latter has no question that the scene can answer. Both are pure: they return a `CauseFinding` with a
score from 0 to 1, or None if nothing speaks for the cause.

What a score is worth depends on the place, so each place has confidences of its own, by family.
Those of a replay were measured on the tuning half of benchmarks/diagnosis.py: with `--fit` it
prints how often a first cause with a given score was right. `CONFIDENCES["replay"]` follows its
output for 931 verdicts (all 28 trainings of the tuning half, in part), rounded down where a band
has few of them; the report half checks it. "Nothing wrong" stays below 0.7 there: on faults that
the experiments do not see, it was said with any score.

Those of the scene follow benchmarks/scene.py --fit: 80 verdicts on 115 planted faults, of which
none that was said with 0.5 or more was wrong.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from sonde.forensics.evidence import Evidence
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.verdict import SURE, Cause, Suspect

Blames = Literal["samples", "tensor", "setting", "machine", "nothing"]
"""What to change: skip samples, roll back a state, reset a setting, check a machine; or nothing."""
Family = Literal["numbers", "text", "pair", "sample", "state", "setting", "machine", "none"]
"""Groups of causes that share a calibration of scores."""
Place = Literal["scene", "replay"]
"""Where evidence comes from; a replay includes what the records say."""
Need = Literal["records", "replay", "text", "pairs"]
"""What a rule requires: records only, a replay of the step, also rows that can be decoded to text,
also a source.
"""

CONFIDENCES: Final[dict[Place, dict[Family, Sequence[tuple[float, float]]]]] = {
    "replay": {
        "numbers": ((0.0, 0.0), (0.5, 0.45), (0.9, 0.9), (1.0, 0.97)),
        "text": ((0.0, 0.0), (0.5, 0.36), (0.9, 0.87), (1.0, 0.97)),
        "pair": ((0.0, 0.0), (0.5, 0.3), (0.75, 0.48), (0.9, 0.68), (0.97, 0.9), (1.0, 0.95)),
        "sample": ((0.0, 0.0), (0.3, 0.3), (0.5, 0.45), (0.7, 0.55), (1.0, 0.62)),
        "state": ((0.0, 0.0), (0.5, 0.4), (0.93, 0.92), (1.0, 0.97)),
        "setting": ((0.0, 0.0), (0.5, 0.45), (0.8, 0.75), (0.93, 0.92), (1.0, 0.97)),
        "machine": ((0.0, 0.0), (0.5, 0.45), (0.93, 0.92), (1.0, 0.97)),
        "none": ((0.0, 0.0), (0.5, 0.45), (0.7, 0.6), (0.9, 0.67), (1.0, 0.69)),
    },
    "scene": {
        "numbers": ((0.0, 0.0), (0.5, 0.45), (0.9, 0.9), (1.0, 0.95)),
        "text": ((0.0, 0.0), (0.5, 0.5), (0.7, 0.72), (0.85, 0.88), (1.0, 0.92)),
        "sample": ((0.0, 0.0), (1.0, 0.6)),
        "setting": ((0.0, 0.0), (0.5, 0.45), (0.85, 0.87), (1.0, 0.9)),
        "none": ((0.0, 0.0), (0.5, 0.5), (1.0, 0.65)),
    },
}
"""For each place and family, scores and the fraction of right verdicts, both increasing. Between
them it is interpolated.
"""

SKIP: Final = "Roll back and leave these samples out: `sonde rollback RUN --step {step} --apply`."
LOOK_AT_SAMPLES: Final = "Read these samples before you act: `sonde spikes RUN --step {step}`."
LOOK_CLOSER: Final = (
    "This is not sure enough to act on. `sonde diagnose RUN --step {step}` replays the step and"
    " can say more."
)
GO_BACK: Final = (
    "Go back to before it: `sonde rollback RUN --step {step} --apply` moves the bad checkpoints"
    " aside, and the run resumes from the last good one."
)


class CauseFinding(NamedTuple):
    """The evidence for a cause."""

    score: float
    """How strong the evidence is, from 0 to 1."""
    evidence: Sequence[str]
    """The evidence in sentences, with numbers."""
    suspects: Sequence[Suspect] = ()
    """The samples that it points to, worst first."""
    module: str | None = None
    """The module or parameter that it points to."""
    rank: int | None = None
    """The rank that it points to."""
    setting: str | None = None
    """The setting that it points to."""
    bad_checkpoint: int | None = None
    """A checkpoint (in completed updates) whose state is already bad."""
    title: str | None = None
    """Replaces the rule's title if the evidence is more specific."""
    blames: Blames | None = None
    """Replaces what the rule blames if the evidence is more specific."""
    advice: Sequence[str] = ()
    """Replaces the rule's advice if the evidence is more specific."""


class CauseRule(NamedTuple):
    """The rule for one cause."""

    title: str
    """The cause in a sentence."""
    advice: tuple[str, ...]
    """What to do; `{step}` stands for the step."""
    blames: Blames
    """What to change."""
    family: Family
    """The calibration of its scores."""
    judge: Callable[[Evidence], CauseFinding | None]
    """The function that judges the evidence."""
    needs: Need = "replay"
    """The rule is skipped without this."""
    at_scene: Callable[[SceneEvidence], CauseFinding | None] | None = None
    """The function that judges the evidence of the scene; None if the scene cannot answer."""
    in_doubt: tuple[str, ...] = (LOOK_CLOSER,)
    """What to look at if the cause is not sure enough to act on; `{step}` stands for the step."""

    def cause(
        self, name: str, finding: CauseFinding, confidence: float, step: int, *, is_calm: bool
    ) -> Cause:
        """Return the finding as a cause of a verdict, with its name and confidence.

        Below `SURE`, and for a calm step, the advice is what to look at: nothing is removed or
        undone on a guess.
        """
        rounded = round(min(max(confidence, 0.01), 0.99), 2)
        is_sure = rounded >= SURE and not is_calm
        advice = self.in_doubt
        if is_sure or self.blames == "nothing":
            advice = tuple(finding.advice) or self.advice
        return Cause(
            cause=name,
            title=finding.title or self.title,
            confidence=rounded,
            evidence=tuple(finding.evidence),
            advice=tuple(line.replace("{step}", str(step)) for line in advice),
            suspects=tuple(finding.suspects),
            module=finding.module,
            rank=finding.rank,
            setting=finding.setting,
            bad_checkpoint=finding.bad_checkpoint,
            blames=finding.blames or self.blames,
        )


def confidence_of(place: Place, family: Family, score: float) -> float:
    """Return the calibrated confidence for a score of a family at a place."""
    points = CONFIDENCES[place][family]
    for (low, below), (high, above) in pairwise(points):
        if score <= high:
            return below + (above - below) * max(score - low, 0.0) / (high - low)
    return points[-1][1]
