"""What the loss function is given: scores, not probabilities, and targets of the same shape."""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import Check, Outcome, does_not_apply, fine, wrong

DIFFERENCE: Final = "difference"
"""In place of a loss function: prediction minus target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossInputs:
    """What was measured."""

    function: str | None
    """The loss function that was called, or `DIFFERENCE`; None if none of torch's was."""
    is_normalised: bool = False
    """Whether the scores went through softmax, or sigmoid, before a loss that applies it itself."""
    shape: tuple[int, ...] = ()
    target_shape: tuple[int, ...] = ()
    broadcasts: bool = False
    """Whether prediction and target have different shapes that torch stretches to a larger one."""
    lacks_logarithm: bool = False
    """Whether `nll_loss` was given anything but logarithms of probabilities, or `kl_div` the
    probabilities themselves.
    """


def judge(measured: LossInputs) -> Outcome:
    """Judge what the loss function was given."""
    if measured.function is None:
        return does_not_apply("No loss function of torch was seen.")
    name = f"F.{measured.function}"
    if measured.function == DIFFERENCE:
        name = "A difference"
    if measured.broadcasts:
        return wrong(
            f"{name} compares a prediction of shape {list(measured.shape)} with a target of shape"
            f" {list(measured.target_shape)}: torch stretches them, so every prediction is compared"
            " with every target."
        )
    if measured.is_normalised:
        return wrong(
            f"{name} normalises scores itself, and it is given probabilities: they are normalised"
            " twice."
        )
    if measured.lacks_logarithm:
        return wrong(
            f"{name} expects logarithms of probabilities, and what it is given is something else:"
            " scores, or the probabilities themselves."
        )
    return fine(f"{name} is given what it expects.")


CHECK: Final = Check(
    name="loss_inputs",
    title="what the loss is given",
    question="Does the loss function get what it expects?",
    meaning="The loss is not what its name says, and hardly falls.",
    advice=(
        "Give F.cross_entropy and the losses `with_logits` the raw scores, F.nll_loss and"
        " F.kl_div their log_softmax, and every regression loss two tensors of one shape."
    ),
    applies_to="losses made by functions of torch",
    judge=judge,
)
