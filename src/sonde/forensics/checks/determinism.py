"""Does the same step give the same result?"""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import Check, Outcome, cannot_tell, fine

_ROUNDING: Final = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Determinism:
    """What was measured on the first batch, run twice with the same random numbers."""

    first: float | None
    second: float | None
    same_gradients: bool | None = None
    module: str = ""
    """The first module whose output differs."""


def judge(measured: Determinism) -> Outcome:
    """Judge whether a step can be repeated."""
    if measured.first is None or measured.second is None:
        return cannot_tell("The step function could not be run up to its loss.")
    if measured.first == measured.second or (
        measured.first != measured.first and measured.second != measured.second
    ):
        if measured.same_gradients is False:
            return cannot_tell("The loss is the same to the bit, and the gradients are not.")
        return fine("The same step gives the same loss and gradients, to the bit.")
    where = f", first in {measured.module}" if measured.module else ""
    numbers = f"{measured.first!r} and {measured.second!r}{where}"
    off = abs(measured.first - measured.second) / max(abs(measured.first), 1e-30)
    if off < _ROUNDING:
        return cannot_tell(f"The same step differs in its last bits: {numbers}.")
    return cannot_tell(
        f"The same step gives {numbers}: something random is not drawn from the generators of"
        " Python, numpy and torch, so other checks could not compare."
    )


CHECK: Final = Check(
    name="determinism",
    title="determinism",
    question="Does the same step give the same result twice?",
    meaning="Steps cannot be repeated to the bit.",
    advice="Use torch.use_deterministic_algorithms(True) while you look for something.",
    applies_to="every training",
    judge=judge,
)
