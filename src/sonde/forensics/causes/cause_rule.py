"""The definition of a cause: its texts, what it blames, what it needs, and how it judges the
evidence.

Every other module in this package has one `CauseRule`, named RULE, and `__init__.py` lists them.
`judge` is a pure function of `Evidence`: it returns a `CauseFinding` with a score from 0 to 1, or
None if nothing speaks for the cause.

The confidence that a score stands for was measured, by family, on the tuning half of
benchmarks/diagnosis.py: with `--fit` it prints how often a first cause with a given score was
right. `CONFIDENCES` follows its output for 931 verdicts (all 28 trainings of the tuning half, in
part), rounded down where a band has few of them; the report half checks it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from sonde.forensics.evidence import Evidence
from sonde.forensics.verdict import Cause, Suspect

Blames = Literal["samples", "tensor", "setting", "machine", "nothing"]
"""What to change: skip samples, roll back a state, reset a setting, check a machine; or nothing."""
Family = Literal["text", "pair", "sample", "state", "setting", "machine", "none"]
"""Groups of causes that share a calibration of scores."""
Need = Literal["records", "replay", "text", "pairs"]
"""What a rule requires: records only, a replay of the step, also rows that can be decoded to text,
also a source.
"""

CONFIDENCES: Final[dict[Family, Sequence[tuple[float, float]]]] = {
    "text": ((0.0, 0.0), (0.5, 0.36), (0.9, 0.87), (1.0, 0.97)),
    "pair": ((0.0, 0.0), (0.5, 0.3), (0.75, 0.48), (0.9, 0.68), (0.97, 0.9), (1.0, 0.95)),
    "sample": ((0.0, 0.0), (0.3, 0.3), (0.5, 0.45), (0.7, 0.55), (1.0, 0.62)),
    "state": ((0.0, 0.0), (0.5, 0.4), (0.93, 0.92), (1.0, 0.97)),
    "setting": ((0.0, 0.0), (0.5, 0.45), (0.8, 0.75), (0.93, 0.92), (1.0, 0.97)),
    "machine": ((0.0, 0.0), (0.5, 0.45), (0.93, 0.92), (1.0, 0.97)),
    "none": ((0.0, 0.0), (0.5, 0.45), (0.7, 0.66), (0.8, 0.82), (0.9, 0.92), (1.0, 0.95)),
}
"""For each family, scores and the fraction of right verdicts, both increasing. Between them it is
interpolated.
"""

SKIP: Final = "Roll back and leave these samples out: `sonde rollback RUN --step {step} --apply`."
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

    def cause(self, name: str, finding: CauseFinding, confidence: float, step: int) -> Cause:
        """Return the finding as a cause of a verdict, with its name and confidence."""
        return Cause(
            cause=name,
            title=finding.title or self.title,
            confidence=round(min(max(confidence, 0.01), 0.99), 2),
            evidence=tuple(finding.evidence),
            advice=tuple(line.replace("{step}", str(step)) for line in self.advice),
            suspects=tuple(finding.suspects),
            module=finding.module,
            rank=finding.rank,
            setting=finding.setting,
            bad_checkpoint=finding.bad_checkpoint,
            blames=self.blames,
        )


def confidence_of(family: Family, score: float) -> float:
    """Return the calibrated confidence for a score of a family."""
    points = CONFIDENCES[family]
    for (low, below), (high, above) in pairwise(points):
        if score <= high:
            return below + (above - below) * max(score - low, 0.0) / (high - low)
    return points[-1][1]
