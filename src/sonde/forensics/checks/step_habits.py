"""What a step forgets: to clear gradients, to be in training mode, to have a learning rate, to let
dropout act.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    counted,
    does_not_apply,
    fine,
    some,
    wrong,
)

_TOO_LONG: Final = 200_000
"""No training warms up for so many steps."""
_EVENLY: Final = 1.5
"""The steps of a warm-up differ by no more than this factor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOver:
    """What was measured from the second update on."""

    num_updates: int
    """How many updates were looked at."""
    num_left: int
    """In how many of them the first backward pass added to gradients of the update before."""


def judge_left_over(measured: LeftOver) -> Outcome:
    """Judge whether gradients are cleared between updates."""
    if not measured.num_updates:
        return cannot_tell("No second update of the same parameters was seen.")
    if measured.num_left:
        return wrong(
            f"In {measured.num_left} of {measured.num_updates} updates, backward added to the"
            " gradients of the update before: they pile up."
        )
    return fine("Gradients are cleared between updates.")


LEFT_OVER: Final = Check(
    name="left_over_gradients",
    title="gradients cleared",
    question="Are gradients cleared between updates?",
    meaning="Every update is made with the sum of all gradients so far.",
    advice="Call optimizer.zero_grad() once for each update, after its step or before its first"
    " backward.",
    applies_to="every training",
    judge=judge_left_over,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainMode:
    """What was measured over the first updates."""

    is_training: bool
    """Whether the model was in training mode in all of them."""
    num_dropouts: int
    """How many dropout modules are in evaluation mode."""
    num_norms: int
    """How many trained modules with batch statistics are in evaluation mode."""


def judge_mode(measured: TrainMode) -> Outcome:
    """Judge whether the model is in training mode."""
    if measured.is_training and measured.num_dropouts:
        return cannot_tell(
            f"The model is in training mode, but {measured.num_dropouts} of its dropout modules are"
            " not. That is right for parts that are frozen."
        )
    if measured.is_training:
        return fine("The model is in training mode.")
    if not measured.num_dropouts and not measured.num_norms:
        return fine("The model is in evaluation mode, and nothing in it depends on that.")
    affected = []
    if measured.num_dropouts:
        affected.append(f"dropout does not act in {counted(measured.num_dropouts, 'module')}")
    if measured.num_norms:
        affected.append(f"batch statistics stand still in {counted(measured.num_norms, 'module')}")
    return wrong(f"The model trains in evaluation mode: {' and '.join(affected)}.")


MODE: Final = Check(
    name="train_mode",
    title="training mode",
    question="Is the model in training mode while it trains?",
    meaning="Dropout is off and batch statistics stand still.",
    advice="Call model.train() before the loop and after every evaluation.",
    applies_to="models with dropout or batch statistics",
    judge=judge_mode,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What was measured over the first updates."""

    rates: tuple[float, ...]
    """The largest rate over all groups, for each update."""
    planned: float = 0.0
    """The largest rate that a scheduler starts from; 0 if there is none."""
    falls_if_divided_by: int = 0
    """If the loss of one batch rises at this rate: what the rate is divided by so that it falls. 0
    if it does not rise, or falls at no rate.
    """


def _steps_to_planned(rates: list[float], planned: float) -> float:
    """Return after how many steps a rate that rises evenly is where it was planned; 0 if it does
    not rise, or not evenly.
    """
    rises = [later - earlier for earlier, later in pairwise(rates)]
    if not rises or min(rises) <= 0 or max(rises) > _EVENLY * min(rises):
        return 0.0
    return planned / (sum(rises) / len(rises))


def judge_rates(measured: Rates) -> Outcome:
    """Judge whether there is a learning rate."""
    known = [rate for rate in measured.rates if rate == rate]  # NaN: the group has no rate
    if not known:
        return does_not_apply("The optimizer has no learning rate.")
    if max(known) == 0:
        return wrong(f"The learning rate is 0 in all of the first {len(known)} updates.")
    if min(known) < 0:
        return wrong(f"The learning rate is negative: {min(known):.3g}.")
    if measured.falls_if_divided_by:
        return wrong(
            f"It is {known[-1]:.3g}, which is too high: updates on one batch raise its loss, and at"
            f" 1/{measured.falls_if_divided_by} of the rate they lower it."
        )
    num_steps = _steps_to_planned(known, measured.planned)
    if num_steps > _TOO_LONG:
        return wrong(
            f"From {known[0]:.3g} to {known[-1]:.3g} in the first {len(known)} updates: at this"
            f" pace the rate reaches its {measured.planned:.3g} after {num_steps:,.0f} steps."
        )
    return fine(f"From {known[0]:.3g} to {known[-1]:.3g} in the first {len(known)} updates.")


RATES: Final = Check(
    name="learning_rate",
    title="learning rate",
    question="Is there a learning rate?",
    meaning="Nothing moves, or everything moves the wrong way.",
    advice="Look at the scheduler: a warm-up may begin at 0 but not stay there, its length may be"
    " counted in something else than steps, and integer division may make it 0.",
    applies_to="optimizers with a learning rate",
    judge=judge_rates,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropout:
    """What was measured on the first batch."""

    num_called: int
    """How many calls of dropout with a positive probability were seen in the training step."""
    is_training: bool
    acts: bool | None
    """Whether other random numbers give another loss; None if that could not be tried."""
    acts_in_evaluation: tuple[str, ...] | None = ()
    """The functions that drop out although the model is in evaluation mode; None if not tried."""


def judge_dropout(measured: Dropout) -> Outcome:
    """Judge whether dropout acts in training and only there."""
    if measured.acts_in_evaluation:
        functions = " and ".join(sorted(set(measured.acts_in_evaluation)))
        return wrong(
            f"Units are dropped in evaluation mode too, by {functions}:"
            f" {len(measured.acts_in_evaluation)} times in a forward pass."
        )
    if not measured.num_called:
        return does_not_apply("No dropout is called in the training step.")
    if measured.acts is None:
        return cannot_tell("The forward pass could not be run again.")
    if measured.acts:
        return fine("Other random numbers give another loss.")
    if not measured.is_training:
        return does_not_apply("The model is in evaluation mode.")
    return wrong(
        f"Dropout is called {measured.num_called} times, and other random numbers give the same"
        " loss to the bit."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationBuffers:
    """What was measured on the first batch in evaluation mode."""

    num_buffers: int
    """How many buffers of numbers the model has."""
    changed: tuple[str, ...] | None = ()
    """Those that a forward pass in evaluation mode changed; None if that could not be tried."""


def judge_buffers(measured: EvaluationBuffers) -> Outcome:
    """Judge whether evaluation leaves the model as it is."""
    if not measured.num_buffers:
        return does_not_apply("The model has no buffers of numbers.")
    if measured.changed is None:
        return cannot_tell("The step function could not be run in evaluation mode.")
    if not measured.changed:
        return fine("A forward pass in evaluation mode changes no buffer.")
    return wrong(
        f"A forward pass in evaluation mode changes {counted(len(measured.changed), 'buffer')}:"
        f" {some(measured.changed)}."
    )


BUFFERS: Final = Check(
    name="evaluation_buffers",
    title="buffers in evaluation",
    question="Does evaluation leave the buffers of the model alone?",
    meaning="Validation data get into running statistics, and results depend on their order.",
    advice="Update running statistics only if self.training.",
    applies_to="models with buffers of numbers",
    judge=judge_buffers,
)


DROPOUT: Final = Check(
    name="dropout",
    title="dropout",
    question="Does dropout act in training, and only there?",
    meaning="Every step drops the same units (a seed set in each step), or evaluation is noisy.",
    advice="Pass training=self.training to F.dropout, a dropout_p of 0 to attention in evaluation,"
    " and set seeds once, before the loop.",
    applies_to="models with dropout",
    judge=judge_dropout,
)
