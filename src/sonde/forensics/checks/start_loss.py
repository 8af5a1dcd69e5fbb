"""The loss at the first step, beside that of somebody who guesses."""

import math
from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import Check, Outcome, does_not_apply, fine, wrong

_MANY_TIMES: Final = 2.0
_MARGIN: Final = 2.0
"""Wrong: more than twice a guess, and two nats above that. A fresh model that is initialised with
care starts within a few percent of the guess; default initialisation of torch within a half.
"""
_FAR_BELOW: Final = 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class StartLoss:
    """What was measured."""

    loss: float | None
    """The mean cross-entropy of the first batch, without label smoothing and class weights; None if
    no cross-entropy was seen.
    """
    num_classes: int = 0
    label_entropy: float = 0.0
    """The entropy of the labels of the first batches, in nats."""
    squared_error: float | None = None
    """In a regression, the mean squared error of the first batch."""
    variance: float = 0.0
    """The variance of the targets of the first batches."""


def judge(measured: StartLoss) -> Outcome:
    """Compare the loss with that of a guess."""
    if measured.squared_error is not None:
        return _judge_regression(measured.squared_error, measured.variance)
    if measured.loss is None:
        return does_not_apply("No F.cross_entropy and no F.mse_loss was seen.")
    guess = math.log(max(measured.num_classes, 2))
    beside = f"the first batch loses {measured.loss:.4g}; a blind guess among"
    beside = f"{beside} {measured.num_classes} classes loses {guess:.4g}"
    if not math.isfinite(measured.loss):
        return wrong(f"The loss of the first batch is {measured.loss}.")
    if measured.loss > _MANY_TIMES * guess + _MARGIN:
        return wrong(f"The model starts out surer than it can be: {beside}.")
    if measured.loss < _FAR_BELOW * min(guess, max(measured.label_entropy, 0.1)):
        return fine(f"Far below a guess, as a pretrained model is: {beside}.")
    return fine(f"{beside[0].upper()}{beside[1:]}.")


def _judge_regression(error: float, variance: float) -> Outcome:
    """State a squared error beside that of the mean: how far above it a model starts depends on the
    scale of the targets, which may be meant so.
    """
    if not math.isfinite(error):
        return wrong(f"The loss of the first batch is {error}.")
    return fine(
        f"The first batch has a squared error of {error:.4g}; always saying the mean of the targets"
        f" has {variance:.4g}."
    )


CHECK: Final = Check(
    name="start_loss",
    title="loss at the start",
    question="Is the first loss near that of a blind guess?",
    meaning="The scores are far too large at the start: a bad initialisation or a wrong scale.",
    advice=(
        "Look at the initialisation of the last layer and of embeddings tied to it (a standard"
        " deviation of 0.02 is usual), and at what scales the scores."
    ),
    applies_to="losses made by F.cross_entropy or F.mse_loss",
    judge=judge,
)
