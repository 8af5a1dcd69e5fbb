"""Does the model ever learn to stop?"""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    does_not_apply,
    fine,
    wrong,
)

_MIN_SEEN: Final = 4
"""Fewer end-of-text tokens than this among the inputs say nothing."""
_MIN_ANSWERS: Final = 16
"""Fewer answers than this may all have been cut off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndOfText:
    """What was measured over the first batches."""

    token: int | None
    """The end-of-text token; None if neither a tokenizer, nor the model's configuration, nor the
    rows say it, or targets are not the next token.
    """
    num_seen: int = 0
    """How often it is in the inputs after the first position, padding left out."""
    num_counted: int = 0
    """How often it is a target that counts."""
    num_answers: int = 0
    """How many rows have a beginning that does not count, as the question before an answer; those
    that were cut off left out, and 0 if all end with the same token.
    """
    is_of_configuration: bool = False
    """Whether only the model's configuration says which token it is: that may be a default which
    the tokenizer does not follow.
    """
    is_padding_token: bool = False
    """Whether rows are padded with it."""


def judge(measured: EndOfText) -> Outcome:
    """Judge whether the end-of-text token is ever a target."""
    if measured.token is None:
        return does_not_apply("The targets are not the next token, or nothing says how texts end.")
    if measured.num_counted:
        return fine(f"Token {measured.token} ends texts {measured.num_counted} times.")
    if not measured.num_seen and measured.num_answers >= _MIN_ANSWERS:
        answers = f"none of {measured.num_answers} answers has it"
        text = f"Token {measured.token} ends a text, and {answers}"
        if measured.is_of_configuration:
            return cannot_tell(f"{text}, if the model's eos_token_id is that of the tokenizer.")
        return wrong(f"{text}: the model does not learn to stop.")
    if measured.num_seen < _MIN_SEEN:
        return does_not_apply(f"The first batches hold {measured.num_seen} ends of texts.")
    because = ""
    if measured.is_padding_token:
        because = " Rows are padded with it too, so it is masked together with the padding."
    return wrong(
        f"Token {measured.token} ends {measured.num_seen} texts, and never counts in the loss: the"
        f" model does not learn to stop.{because}"
    )


CHECK: Final = Check(
    name="end_of_text",
    title="end of text",
    question="Is the end-of-text token ever a target that counts?",
    meaning="A model that is never taught to stop generates until it is cut off.",
    advice=(
        "Put the end-of-text token after every answer; pad with a token of its own, or mask labels"
        " by the attention mask, not by the token."
    ),
    applies_to="next-token training with an end-of-text token",
    judge=judge,
)
