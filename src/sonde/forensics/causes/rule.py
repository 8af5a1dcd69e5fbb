"""What a cause is: its words, what it blames, what it needs to know, and how it judges the evidence.

Every file beside this one holds one `Rule`, called RULE, and `__init__.py` lists them. `judge` is a pure decision over `Evidence`: it returns a
`Finding` with a score from 0 to 1, or None when nothing speaks for the cause. What a score is worth as a confidence was measured (calibration.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from sonde.forensics.evidence import Evidence
from sonde.forensics.verdict import Cause, Suspect

Blames = Literal["samples", "tensor", "setting", "machine", "nothing"]
"""What is to be changed: samples left out, a state gone back to, a setting set back, a machine looked at; or nothing."""
Family = Literal["text", "pair", "sample", "state", "setting", "machine", "none"]
"""Causes whose scores mean the same share of right verdicts."""
Need = Literal["replay", "text", "pairs"]
"""What a rule cannot do without: the step made again, rows that can be read, rows with a source."""

SKIP: Final = "Roll back and leave these samples out: `sonde rollback RUN --step {step} --apply`."
GO_BACK: Final = (
    "Go back to before it: `sonde rollback RUN --step {step} --apply` moves the bad checkpoints aside, and the run resumes "
    "from the last good one."
)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What speaks for a cause."""

    score: float
    """How much, from 0 to 1."""
    evidence: Sequence[str]
    """In sentences, with the numbers."""
    suspects: Sequence[Suspect] = ()
    """The samples it points at, worst first."""
    module: str | None = None
    """The module or parameter it points at."""
    rank: int | None = None
    """The rank it points at."""
    setting: str | None = None
    """The setting it points at."""
    bad_checkpoint: int | None = None
    """The checkpoint, by its updates, whose state is bad already."""
    title: str | None = None
    """Instead of the rule's own, where the evidence says it better."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One cause."""

    title: str
    """In a sentence."""
    advice: tuple[str, ...]
    """What to do; {step} stands for the step."""
    blames: Blames
    """What is to be changed."""
    family: Family
    """Which calibration its scores take."""
    judge: Callable[[Evidence], Finding | None]
    """What speaks for it."""
    needs: frozenset[Need] = frozenset({"replay"})
    """Without these it is not asked."""

    def cause(self, name: str, finding: Finding, confidence: float, step: int) -> Cause:
        """What a verdict says under a name, with so much confidence."""
        return Cause(
            cause=name,
            title=finding.title or self.title,
            confidence=round(min(max(confidence, 0.01), 0.99), 2),
            evidence=tuple(finding.evidence),
            advice=tuple(one.replace("{step}", str(step)) for one in self.advice),
            suspects=tuple(finding.suspects),
            module=finding.module,
            rank=finding.rank,
            setting=finding.setting,
            bad_checkpoint=finding.bad_checkpoint,
            blames=self.blames,
        )
