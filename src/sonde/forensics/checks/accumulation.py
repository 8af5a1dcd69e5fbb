"""The weight of each micro-batch in its update."""

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

_CLOSE: Final = 0.03
"""Weights within this of what is expected are meant so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulation:
    """What was measured on one update with several micro-batches."""

    num_micro: int
    weights: tuple[float, ...] = ()
    """What backward was called with, divided by the micro-batch's mean loss per target."""
    counts: tuple[int, ...] = ()
    """The number of targets that count in each micro-batch."""
    unknown: str = ""
    """Why the weights could not be measured."""


def judge(measured: Accumulation) -> Outcome:
    """Judge how micro-batches are weighed."""
    num = measured.num_micro
    if num < 2:
        return does_not_apply("An update has one micro-batch.")
    if measured.unknown or not measured.weights:
        return cannot_tell(measured.unknown or "The weights were not seen.")
    total = sum(measured.weights)
    num_targets = sum(measured.counts)
    if _is_close(total, 1.0):
        return fine(_described(measured))
    if _is_close(total, num_targets):
        return fine("Losses are sums over targets, and so are the gradients of an update.")
    if _is_close(total, num):
        return wrong(
            f"The gradients of {num} micro-batches are added and not averaged: each has the weight"
            f" 1, together {num}."
        )
    if _is_close(total, 1 / num):
        return wrong(
            f"The loss is divided twice: each of {num} micro-batches has the weight 1/{num * num}."
        )
    return cannot_tell(f"The {num} micro-batches have weights that add up to {total:.4g}.")


def _described(measured: Accumulation) -> str:
    num = measured.num_micro
    targets = max(sum(measured.counts), 1)
    shares = [count / targets for count in measured.counts]
    pairs = list(zip(measured.weights, shares, strict=False))
    if len(set(measured.counts)) == 1:
        return f"{num} micro-batches with {measured.counts[0]} targets each count equally."
    if pairs and all(_is_close(weight, share) for weight, share in pairs):
        return f"Every target counts equally over {num} micro-batches."
    fewest = min(measured.counts, default=0)
    most = max(measured.counts, default=0)
    return (
        f"{num} micro-batches count equally, though they have {fewest} to {most} targets: targets"
        " of a short one count more."
    )


def _is_close(value: float, expected: float) -> bool:
    return abs(value - expected) <= _CLOSE * abs(expected)


CHECK: Final = Check(
    name="accumulation",
    title="accumulation",
    question="How much does each micro-batch count in its update?",
    meaning="Gradients are too large or too small by the number of micro-batches.",
    advice="Divide the loss by the number of micro-batches, once: some libraries do it for you.",
    applies_to="updates with several micro-batches",
    judge=judge,
)
