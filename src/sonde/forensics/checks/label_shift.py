"""Which token is the target at a position: the next one, or another?"""

import math
from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    does_not_apply,
    fine,
    percent,
    wrong,
)

ALIKE: Final = 0.95
"""From this share on, targets are the inputs of another position."""
_MANY: Final = 0.75
"""From this share of rows on, inputs and labels are in different orders."""
_BY_CHANCE: Final = 3.0
"""Two shares that differ by up to so many standard deviations may be the same."""
_UNLIKE: Final = 0.6
"""Below this share, the next token is clearly not the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelShift:
    """What was measured on the first batch."""

    has_tokens: bool
    """Whether the model looks up tokens, and the loss has one target for each of them."""
    shares: tuple[tuple[int, float], ...] = ()
    """For each shift: the share of targets at t that are the input at t + shift."""
    is_causal: bool | None = None
    """Whether later tokens leave the scores of earlier positions alone; None if that is unknown."""
    of_other_rows: float = 0.0
    """The share of rows whose targets are the next tokens of another row."""
    in_own_row: float | None = None
    """The share of targets that are among the tokens of their own row; None if targets are no
    tokens of the same vocabulary, or most positions have none.
    """
    in_next_row: float | None = None
    """The share that is among the tokens of the next row."""
    num_targets: int = 0
    """How many targets these shares are of."""
    is_in_other_order: bool = False
    """Whether scores are flattened position by position and targets row by row, or the other way
    round.
    """
    offset: int = 0
    """By how many positions the scores begin after the first token: a script may cut them off."""


def shift_of(shares: tuple[tuple[int, float], ...]) -> int | None:
    """Return by how much targets are shifted against the inputs; None if they are not inputs."""
    by_shift = dict(shares)
    if by_shift.get(1, 0.0) >= ALIKE:
        return 1
    likely = [(share, -abs(shift), shift) for shift, share in shares if share >= ALIKE]
    return max(likely)[2] if likely else None


def judge(measured: LabelShift) -> Outcome:
    """Judge the shift."""
    if not measured.has_tokens:
        return does_not_apply("The loss has no target for each token that the model looks up.")
    if measured.is_in_other_order:
        return wrong(
            "Changing the tokens of one row moves the scores that are compared with the targets of"
            " other rows: scores and targets are flattened in different orders, one row by row and"
            " the other position by position."
        )
    found = shift_of(measured.shares)
    by_shift = dict(measured.shares)
    if found is None and measured.of_other_rows >= _MANY:
        return wrong(
            f"{percent(measured.of_other_rows)} of the rows have the next tokens of another row as"
            " targets: inputs and labels are not in the same order."
        )
    if found is None and _are_unrelated(measured):
        return cannot_tell(
            f"{percent(measured.in_own_row or 0.0)} of the targets are among the tokens of their"
            f" own row, and {percent(measured.in_next_row or 0.0)} among those of the next. If this"
            " is a language model, its labels belong to other rows."
        )
    if found is None:
        return does_not_apply("The targets are not the inputs of another position.")
    share = percent(by_shift[found])
    shift = found if found == 1 else found - measured.offset
    if shift == 1:
        return fine(f"{share} of the targets are the next token of the input.")
    if by_shift.get(1, 0.0) >= _UNLIKE:
        return cannot_tell("The rows repeat themselves, so several shifts fit.")
    if shift == 0:
        return _judge_unshifted(measured, share)
    if measured.is_causal is not True:
        return cannot_tell(f"{share} of the targets are the input {_places(shift)}.")
    return wrong(
        f"{share} of the targets are the input {_places(shift)}, and"
        f" {percent(by_shift.get(1, 0.0))} are the next token."
    )


def _are_unrelated(measured: LabelShift) -> bool:
    """Return whether targets are no more like their own row than like another."""
    own = measured.in_own_row
    other = measured.in_next_row
    if own is None or other is None or not measured.num_targets:
        return False
    spread = math.sqrt(2 * other * (1 - other) / measured.num_targets)
    return own <= other + _BY_CHANCE * spread


def _judge_unshifted(measured: LabelShift, share: str) -> Outcome:
    if measured.is_causal:
        return wrong(
            f"{share} of the targets are the input at the same position: the model is asked for"
            " the token that it has just been given."
        )
    return cannot_tell(
        f"{share} of the targets are the input at the same position. That is right for an"
        " autoencoder and wrong for a language model."
    )


def _places(shift: int) -> str:
    places = "place" if abs(shift) == 1 else "places"
    return f"{abs(shift)} {places} {'further on' if shift > 0 else 'back'}"


CHECK: Final = Check(
    name="label_shift",
    title="shift of the labels",
    question="Is the target at each position the next token?",
    meaning="Not shifted, the loss falls to 0 and nothing is learned; shifted twice, the model"
    " learns to skip a token; of other rows, there is nothing to learn.",
    advice=(
        "Shift once: either the batch has labels one place further on, or the model shifts them"
        " (Hugging Face models do), never both and never neither. Shuffle inputs and labels"
        " together."
    ),
    applies_to="models that look up tokens with F.embedding, and losses of F.cross_entropy",
    judge=judge,
)
