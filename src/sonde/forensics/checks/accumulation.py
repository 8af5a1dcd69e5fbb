"""The weight of each micro-batch in its update."""

from collections.abc import Sequence
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
_CLEARLY: Final = 1.5
"""From this ratio on, micro-batches have clearly unequal numbers of targets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulation:
    """What was measured on one update with several micro-batches."""

    num_micro: int
    weights: tuple[float, ...] = ()
    """What backward was called with, divided by the micro-batch's mean loss per target, times what
    the gradients are multiplied by before the optimizer's step.
    """
    counts: tuple[int, ...] = ()
    """The number of targets that count in each micro-batch."""
    ignores_labels: bool = False
    """Whether the targets are the next tokens, and some are left out of the loss. A masked language
    model also leaves some out, but how many is chance.
    """
    are_alike: bool = True
    """Whether the losses are of one kind and of different targets, as those of micro-batches are,
    and those of several tasks are not.
    """
    is_cleared: bool = False
    """Whether the gradients of a micro-batch are gone when the next one comes."""
    norms_between: tuple[float, float] | None = None
    """The gradient norm after one micro-batch, and when the next one came, if it was another one by
    then.
    """
    is_carried_on: bool = False
    """Whether backward is called on the sum of all losses so far."""
    unknown: str = ""
    """Why the weights could not be measured."""


def judge(measured: Accumulation) -> Outcome:
    """Judge how micro-batches are weighed."""
    num = measured.num_micro
    if num < 2:
        return does_not_apply("An update has one micro-batch.")
    mishandled = _judge_gradients(measured)
    if mishandled is not None:
        return mishandled
    if measured.unknown or not measured.weights:
        return cannot_tell(measured.unknown or "The weights were not seen.")
    total = sum(measured.weights)
    if _is_close(total, 1.0):
        return _judge_shares(measured)
    if _is_close(total, sum(measured.counts)):
        return fine("Losses are sums over targets, and so are the gradients of an update.")
    if not measured.are_alike:
        return does_not_apply("Several losses of one batch are added up.")
    if _are_all(measured.weights, 1.0):
        return wrong(
            f"The gradients of {num} micro-batches are added and not averaged: each has the weight"
            f" 1, together {num}."
        )
    if _are_all(measured.weights, 1 / num**2):
        return wrong(
            f"The loss is divided twice: each of {num} micro-batches has the weight 1/{num * num}."
        )
    if _has_token_shares(measured, divided_by=num):
        return wrong(
            f"The loss is divided twice: by the targets of all {num} micro-batches, and by {num}."
        )
    return cannot_tell(f"The {num} micro-batches have weights that add up to {total:.4g}.")


def _judge_gradients(measured: Accumulation) -> Outcome | None:
    """Judge what is done to gradients or losses between micro-batches; None if nothing is."""
    num = measured.num_micro
    if measured.is_cleared:
        return wrong(
            f"Gradients are cleared at each of {num} micro-batches, so only the last one counts in"
            " its update."
        )
    if measured.norms_between is not None and measured.are_alike:
        after, before = measured.norms_between
        return wrong(
            f"The gradients are changed between micro-batches: their norm was {after:.3g} after one"
            f" and {before:.3g} when the next came, so that earlier ones count less."
        )
    if measured.is_carried_on and measured.are_alike:
        return wrong(
            f"Backward is called on the sum of all losses so far: of {num} micro-batches, the first"
            f" counts {num} times, and the last once."
        )
    return None


def _judge_shares(measured: Accumulation) -> Outcome:
    """Judge weights that add up to 1."""
    num = measured.num_micro
    fewest = min(measured.counts, default=0)
    most = max(measured.counts, default=0)
    if _has_token_shares(measured) and fewest != most:
        return fine(f"Every target counts equally over {num} micro-batches.")
    if not _are_all(measured.weights, 1 / num):
        return fine(f"The weights of {num} micro-batches add up to 1.")
    if fewest == most:
        return fine(f"{num} micro-batches with {most} targets each count equally.")
    equally = f"{num} micro-batches count equally, though they have {fewest} to {most} targets"
    if measured.ignores_labels and most >= _CLEARLY * fewest:
        return wrong(
            f"{equally}: a target in the shortest counts {most / max(fewest, 1):.1f} times as much"
            " as one in the longest."
        )
    return fine(f"{equally}: targets of a short one count more.")


def _has_token_shares(measured: Accumulation, *, divided_by: int = 1) -> bool:
    """Return whether each micro-batch counts as much as it has targets, divided by a number."""
    num_targets = max(sum(measured.counts), 1) * divided_by
    if len(measured.weights) != len(measured.counts):
        return False
    pairs = zip(measured.weights, measured.counts, strict=True)
    return all(_is_close(weight, count / num_targets) for weight, count in pairs)


def _are_all(weights: Sequence[float], expected: float) -> bool:
    return all(_is_close(weight, expected) for weight in weights)


def _is_close(value: float, expected: float) -> bool:
    return abs(value - expected) <= _CLOSE * abs(expected)


CHECK: Final = Check(
    name="accumulation",
    title="accumulation",
    question="How much does each micro-batch count in its update?",
    meaning="Gradients are too large or too small, or some targets count more than others.",
    advice="Divide each loss by the number of micro-batches, once: some libraries do it for you."
    " Where targets are left out, add up losses with reduction='sum' and divide by the number of"
    " targets in all micro-batches. Clip, scale and clear gradients once in an update: not after"
    " every micro-batch.",
    applies_to="updates with several micro-batches",
    judge=judge,
)
