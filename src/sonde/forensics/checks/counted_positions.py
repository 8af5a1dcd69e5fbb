"""The share of positions that count in the loss, and what is among them: nothing at all, or
padding.
"""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    does_not_apply,
    fine,
    percent,
    wrong,
)

_MANY_ROWS: Final = 0.5
"""More rows than this without a target are wrong. A few are cut off within their prompt, or have no
masked word by chance.
"""
_MANY_OUTSIDE: Final = 0.2
"""If more of what counts is outside of a mask, and as much inside, the labels do not follow it."""
_MUCH_PADDING: Final = 0.01
"""Padding may be this share of what counts: one end-of-text token a row is meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedPositions:
    """What was measured over the first batches."""

    num_rows: int
    num_positions: int
    num_counted: int
    num_rows_without: int
    num_batches: int = 1
    num_batches_without: int = 0
    mask: str = ""
    """The name of a mask in the batch that says by its name which positions are to count, such as
    `completion_mask`; empty if there is none.
    """
    num_inside: int = 0
    """How many of the positions that count are inside of that mask."""
    num_outside: int = 0
    """How many are outside."""


def judge_counted(measured: CountedPositions) -> Outcome:
    """Judge whether rows have something to learn from."""
    if not measured.num_positions:
        return does_not_apply("No F.cross_entropy was seen.")
    share = measured.num_counted / measured.num_positions
    counts = f"{percent(share)} of {measured.num_positions} positions count"
    if measured.num_batches_without:
        return wrong(
            f"In {measured.num_batches_without} of {measured.num_batches} batches no position"
            " counts, so their loss is not a number."
        )
    without = measured.num_rows_without / max(measured.num_rows, 1)
    if without > _MANY_ROWS:
        return wrong(
            f"{measured.num_rows_without} of {measured.num_rows} rows have no position that"
            f" counts; {counts}."
        )
    num_masked = measured.num_inside + measured.num_outside
    if min(measured.num_inside, measured.num_outside) > _MANY_OUTSIDE * num_masked:
        return wrong(
            f"{percent(measured.num_outside / num_masked)} of the positions that count are outside"
            f" of `{measured.mask}`: the batch has this mask, and the labels do not follow it."
        )
    if measured.num_rows_without:
        return fine(f"{counts}; {measured.num_rows_without} of {measured.num_rows} rows have none.")
    return fine(f"{counts}, some in every row.")


COUNTED: Final = Check(
    name="counted_positions",
    title="positions that count",
    question="Does every row have positions that count in the loss?",
    meaning="Rows whose targets are all ignored teach nothing.",
    advice=(
        "Look at how labels are masked: the prompt may be found at the wrong place, or rows may be"
        " cut off before their answer begins. A mask must have the name that a collator looks for."
    ),
    applies_to="losses made by F.cross_entropy",
    judge=judge_counted,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingInLoss:
    """What was measured over the first batches."""

    num_padding: int
    """How many positions of the inputs are padding."""
    num_counted: int
    num_counted_padding: int
    """How many of the positions that count have padding as their target."""
    padding_token: int | None = None
    is_sure: bool = True
    """Whether a mask of the batch says what padding is; otherwise rows only end alike."""


def judge_padding(measured: PaddingInLoss) -> Outcome:
    """Judge whether padding is learned."""
    if not measured.num_padding:
        return does_not_apply("No padding was found in the first batches.")
    share = measured.num_counted_padding / max(measured.num_counted, 1)
    if share <= _MUCH_PADDING:
        return fine(f"{measured.num_padding} positions are padding, and the loss leaves them out.")
    known = "is padding" if measured.is_sure else "fills the ends of rows like padding"
    return wrong(
        f"Token {measured.padding_token} {known}, and it is {percent(share)} of the targets that"
        " count: the model learns to predict padding, and the loss looks better than it is."
    )


PADDING: Final = Check(
    name="padding_in_loss",
    title="padding in the loss",
    question="Is padding left out of the loss?",
    meaning="The mean is over padding too: the loss is too low, and depends on the lengths.",
    advice="Set the labels of padding to -100, or pass ignore_index to the loss.",
    applies_to="padded batches of tokens",
    judge=judge_padding,
)
