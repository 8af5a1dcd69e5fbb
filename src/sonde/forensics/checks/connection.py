"""Is every parameter connected: to the loss, to the optimizer, and to the model?"""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    counted,
    does_not_apply,
    fine,
    percent,
    some,
    wrong,
)

_MANY: Final = 0.5
"""From this share of the parameters on, gradients that are always 0 are no detail of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientReach:
    """What was measured over the first updates."""

    num_parameters: int
    """How many parameter tensors require a gradient and are in an optimizer."""
    without: tuple[str, ...] = ()
    """Those that never got a gradient."""
    without_but_used: tuple[str, ...] | None = None
    """Those of them that change the loss when they are changed; None if that was not tried."""
    always_zero: tuple[str, ...] = ()
    """Those whose gradients were exactly 0 in every update."""
    share_always_zero: float = 0.0
    """What share of the trained numbers these hold."""
    does_zero_count: bool = True
    """Whether the loss changes when these are changed."""
    all_zero: bool = False
    """Whether every gradient was 0 in every update."""
    norm_after_backward: float | None = None
    """Then: the norm of the gradients right after backward; None if it is not known."""


def judge_reach(measured: GradientReach) -> Outcome:
    """Judge whether gradients reach every parameter that the loss depends on."""
    if not measured.num_parameters:
        return cannot_tell("No optimizer holds a parameter that requires a gradient.")
    if measured.all_zero:
        return _judge_zeros(measured.norm_after_backward)
    num_zero = len(measured.always_zero)
    if measured.share_always_zero >= _MANY and num_zero >= _MANY * measured.num_parameters:
        zero = (
            f"In every update, the gradients of {num_zero} of {measured.num_parameters} parameters"
            f" were exactly 0: {some(measured.always_zero)}."
        )
        if not measured.does_zero_count:
            return cannot_tell(f"{zero} Changing them a little does not change the loss.")
        return wrong(f"{zero} Weights that all begin alike, or units that are all dead, do this.")
    if not measured.without:
        return fine(f"All {measured.num_parameters} parameters get a gradient.")
    names = f"{len(measured.without)} of {measured.num_parameters} parameters never got a gradient"
    if measured.without_but_used is None:
        return cannot_tell(
            f"{names} ({some(measured.without)}); it was not tried whether it counts."
        )
    if not measured.without_but_used:
        return fine(f"{names} ({some(measured.without)}), and the loss does not depend on them.")
    return wrong(
        f"The loss depends on {counted(len(measured.without_but_used), 'parameter')} that the"
        f" optimizer holds, but that no gradient reaches: {some(measured.without_but_used)}."
    )


def _judge_zeros(norm_after_backward: float | None) -> Outcome:
    """Judge gradients that are all 0 at the optimizer's step."""
    zero = "In every update, all gradients were missing or 0 at the optimizer's step"
    if norm_after_backward:
        return wrong(
            f"{zero}, though their norm was {norm_after_backward:.3g} after backward: they are"
            " cleared before the step."
        )
    if norm_after_backward == 0:
        return wrong(f"{zero}, and already right after backward.")
    return wrong(f"{zero}.")


REACH: Final = Check(
    name="gradient_reach",
    title="gradients reach",
    question="Does a gradient reach every parameter that the loss depends on?",
    meaning="Something cuts the graph, so these parameters are never trained.",
    advice="Look behind them for detach(), .data, no_grad, argmax, item() or a new tensor made"
    " from numbers; where gradients are 0, at the initialisation and the activations.",
    applies_to="every training",
    judge=judge_reach,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerMembers:
    """What was measured over the first updates."""

    num_parameters: int
    """How many numbers the parameters that require a gradient have."""
    num_held: int
    """How many of them an optimizer holds that moved in these updates."""
    with_gradient_not_held: tuple[str, ...] = ()
    """Parameters that get a gradient, and no optimizer holds them."""


def judge_members(measured: OptimizerMembers) -> Outcome:
    """Judge whether optimizers hold all that is trained."""
    if not measured.num_parameters:
        return does_not_apply("No parameter of the model requires a gradient.")
    if not measured.num_held:
        return wrong("The optimizer holds no parameter of this model: it moves something else.")
    share = percent(measured.num_held / measured.num_parameters)
    if not measured.with_gradient_not_held:
        return fine(f"The optimizer holds {share} of the trainable weights.")
    return wrong(
        f"No optimizer holds {counted(len(measured.with_gradient_not_held), 'parameter')} with a"
        f" gradient, so nothing trains them: {some(measured.with_gradient_not_held)}."
    )


MEMBERS: Final = Check(
    name="optimizer_members",
    title="optimizer's parameters",
    question="Does the optimizer hold every parameter that gets a gradient?",
    meaning="Parameters made after the optimizer, or of another copy of the model, stay as they"
    " are.",
    advice="Make the optimizer after the model is complete. If they are meant to stay, set"
    " requires_grad=False, which also saves their gradients.",
    applies_to="every training",
    judge=judge_members,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsMove:
    """What was measured over the first updates."""

    num_parameters: int
    """How many parameter tensors got a gradient other than 0 while their rate was not 0."""
    unmoved: tuple[str, ...] = ()
    """Those of them that are the same to the bit as before."""
    frozen_but_moved: tuple[str, ...] = ()
    """Parameters that an optimizer holds and moved, though they require no gradient."""
    has_rate: bool = True
    """Whether any rate was not 0."""


def judge_move(measured: WeightsMove) -> Outcome:
    """Judge whether weights move that should, and only those."""
    if not measured.has_rate:
        return cannot_tell("The learning rate was 0 in all of these updates.")
    if measured.frozen_but_moved:
        return wrong(
            f"The optimizer moves {counted(len(measured.frozen_but_moved), 'parameter')} that"
            f" should not get a gradient: {some(measured.frozen_but_moved)}."
        )
    if not measured.num_parameters:
        return cannot_tell("No parameter of an optimizer got a gradient.")
    if measured.unmoved:
        return wrong(
            f"Of {counted(measured.num_parameters, 'parameter')} with gradients,"
            f" {len(measured.unmoved)} did not move in these updates: {some(measured.unmoved)}."
        )
    return fine(f"All {measured.num_parameters} parameters with gradients moved.")


MOVE: Final = Check(
    name="weights_move",
    title="weights move",
    question="Do all weights with a gradient move, and no others?",
    meaning="The optimizer's step does not arrive at the weights that the model uses.",
    advice="Look at the rate of their group, at their precision, and whether the model was copied"
    " or moved after the optimizer was made.",
    applies_to="every training",
    judge=judge_move,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TiedWeights:
    """What was measured before the first step."""

    tied: tuple[str, ...] = ()
    """Embeddings and output layers that share their memory."""
    only_equal: tuple[str, ...] = ()
    """Pairs with equal values in different memory."""


def judge_tied(measured: TiedWeights) -> Outcome:
    """Judge whether weights that look tied are."""
    if measured.only_equal:
        return wrong(
            f"{some(measured.only_equal)} have equal values in different memory: they look tied,"
            " and go apart with the first update."
        )
    if measured.tied:
        return fine(f"{some(measured.tied)} share their memory.")
    return does_not_apply("No embedding shares its values with an output layer.")


TIED: Final = Check(
    name="tied_weights",
    title="tied weights",
    question="Are weights that look tied really one?",
    meaning="The weights were tied and a copy, a load or a move has parted them.",
    advice="Tie them after loading and moving the model: head.weight = embedding.weight.",
    applies_to="models with an embedding and an output layer of the same shape",
    judge=judge_tied,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unregistered:
    """What was measured before the first step."""

    hidden: tuple[str, ...] = ()
    """Parameters in plain Python containers, which torch does not see."""
    num_held: int = 0
    """How many of them an optimizer holds."""


def judge_unregistered(measured: Unregistered) -> Outcome:
    """Judge whether torch sees every parameter."""
    if not measured.hidden:
        return fine("torch sees every parameter of the model.")
    where = f"The model keeps {counted(len(measured.hidden), 'parameter')} in plain containers"
    if measured.num_held == len(measured.hidden):
        return wrong(
            f"{where}: {some(measured.hidden)}. The optimizer moves them, but they are not saved"
            " with the model and stay on their device."
        )
    return wrong(f"{where} of Python, where torch does not look: {some(measured.hidden)}.")


UNREGISTERED: Final = Check(
    name="unregistered",
    title="registered parameters",
    question="Does torch see every parameter?",
    meaning="They are not moved, not saved, and not trained.",
    advice="Keep modules in nn.ModuleList or nn.ModuleDict, parameters in nn.ParameterList.",
    applies_to="every training",
    judge=judge_unregistered,
)
