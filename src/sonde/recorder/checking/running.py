"""Measures by running: the same step twice, other random numbers, float32 beside the precision in
force, the weights of micro-batches, and one batch again and again.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from sonde import ranks
from sonde.forensics.checks.connection import GradientReach, TiedWeights, Unregistered, WeightsMove
from sonde.forensics.checks.determinism import Determinism
from sonde.forensics.checks.one_batch import LOWER_RATES, OneBatch
from sonde.forensics.checks.precision import LostUpdates, Precision
from sonde.forensics.checks.step_habits import Dropout, EvaluationBuffers
from sonde.recorder.checking.bench import Bench, in_evaluation
from sonde.recorder.checking.first_steps import FirstSteps
from sonde.recorder.checking.forward_watch import Look, norm_of
from sonde.recorder.checking.snapshot import undone
from sonde.recorder.moment import in_float32
from sonde.recorder.training import Training
from sonde.train.unregistered import unregistered_parameters

_NUM_BY_HEART: Final = 8
_OTHER_SEED: Final = 20261118
_NUDGE: Final = 0.1
_MAX_TRIED: Final = 6
"""How many parameters without a gradient are tried one by one."""


def determinism(bench: Bench, first: Look, second: Look) -> Determinism:
    """Compare two runs of the same step, and the gradients of two more."""
    module = ""
    for before, after in zip(first.calls, second.calls, strict=False):
        pairs = zip(before.outputs, after.outputs, strict=False)
        if any(not torch.equal(old, new) for old, new in pairs):
            module = before.name
            break
    same = None
    if not ranks.any_rank(first.loss is None or first.loss != second.loss):
        gradients = []
        for _ in range(2):
            with undone(bench.training, bench.reach):
                gradients.append(bench.gradients([bench.first])[0])
        same = gradients[0].keys() == gradients[1].keys() and all(
            _are_equal(gradients[0][parameter], gradients[1][parameter])
            for parameter in gradients[0]
        )
    return Determinism(first=first.loss, second=second.loss, same_gradients=same, module=module)


def _are_equal(first: Tensor, second: Tensor) -> bool:
    if first.layout is not torch.strided:
        first = first.to_dense()
        second = second.to_dense()
    return torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))


def dropout(bench: Bench, base: Look, *, is_training: bool) -> Dropout:
    """Try other random numbers, and evaluation mode."""
    acts = None
    if not ranks.any_rank(not base.dropouts):
        acts = _depends_on_seed(bench, base.loss)
    in_eval: tuple[str, ...] | None = None
    with ExitStack() as stack:
        stack.enter_context(undone(bench.training, bench.reach))
        stack.enter_context(in_evaluation(bench.reach.modules()))
        stack.enter_context(suppress(Exception))  # some models fail in evaluation mode
        look = bench.forward_here(bench.first)
        if not any(root.training for root in bench.reach.roots):
            in_eval = tuple(look.dropouts)
    return Dropout(
        num_called=len(base.dropouts),
        is_training=is_training,
        acts=acts,
        acts_in_evaluation=in_eval,
    )


def _depends_on_seed(bench: Bench, loss: float | None) -> bool | None:
    """Return whether other random numbers give another loss than `loss`; None if that is not
    known.
    """
    other = bench.forward(bench.first, seed=_OTHER_SEED).loss
    return None if other is None or loss is None else other != loss


@contextmanager
def without_zeros(bench: Bench) -> Iterator[bool]:
    """Give matrices that are all 0 small random values within the block, and say whether there were
    any. Adapters and some output layers begin with zeros, so that nothing before them counts yet.
    """
    zeros: list[Tensor] = []
    if not bench.training.is_sharded:
        matrices = [part for part in bench.reach.parameters() if part.dim() > 1]
        zeros = [part for part in matrices if not bool((part != 0).any())]
    before = [parameter.detach().clone() for parameter in zeros]
    dice = torch.Generator().manual_seed(_OTHER_SEED)
    try:
        with torch.no_grad():
            for parameter in zeros:
                values = torch.randn(parameter.shape, generator=dice)
                parameter.copy_(_NUDGE * values)
        yield bool(zeros)
    finally:
        with torch.no_grad():
            for parameter, old in zip(zeros, before, strict=True):
                parameter.copy_(old)


def evaluation_buffers(bench: Bench) -> EvaluationBuffers:
    """Run the first batch in evaluation mode, and compare buffers."""
    named = []
    for name, buffer in bench.training.model.named_buffers():
        if buffer.is_floating_point() and not bench.training.is_sharded:
            named.append((name.replace("_orig_mod.", "").removeprefix("module."), buffer))
    changed: tuple[str, ...] | None = None
    before = [buffer.detach().clone() for _, buffer in named]
    with ExitStack() as stack:
        stack.enter_context(undone(bench.training, bench.reach))
        stack.enter_context(in_evaluation(bench.reach.modules()))
        stack.enter_context(suppress(Exception))  # some models fail in evaluation mode
        bench.forward_here(bench.first)
        if not any(module.training for module in bench.reach.modules()):
            pairs = zip(named, before, strict=True)
            changed = tuple(name for (name, now), old in pairs if not _are_equal(now, old))
    return EvaluationBuffers(num_buffers=len(named), changed=changed)


def precision(bench: Bench) -> Precision:
    """Run the first update's gradients in the precision in force, and in float32."""
    training = bench.training
    dtype = _autocast_dtype(bench)
    if ranks.any_rank(dtype is None):
        return Precision(dtype=None)
    feeds = bench.updates[0][:1]
    with undone(training, bench.reach):
        low, looks = bench.gradients(feeds)
    with undone(training, bench.reach), in_float32(training.model, training.device_type):
        if ranks.any_rank(_autocast_dtype(bench, below_the_model=True) is not None):
            # Accelerate switches autocast on within the model's own forward.
            return Precision(dtype=dtype)
        high, other = bench.gradients(feeds)
    return Precision(
        dtype=dtype,
        loss=_unscaled_loss(looks[0]),
        float32_loss=_unscaled_loss(other[0]),
        cosine=None if _overflows_on_purpose(training, low) else _cosine(low, high),
    )


def _overflows_on_purpose(training: Training, gradients: dict[Tensor, Tensor]) -> bool:
    """Return whether a gradient scaler is still looking for its scale: it skips updates whose
    gradients overflow, and the loop may have cleared them, so they say nothing of the precision.
    """
    if not any(scaler.is_enabled() for scaler in training.scalers()):
        return False
    norm = norm_of(gradients.values())
    return norm == 0 or not math.isfinite(norm)


def _unscaled_loss(look: Look) -> float | None:
    """Return the mean loss of the largest loss function, otherwise what backward began with."""
    call = look.main_loss()
    return look.loss if call is None else call.mean


def _autocast_dtype(bench: Bench, *, below_the_model: bool = False) -> str | None:
    """Return the precision of autocast when a module is called; None without it."""
    training = bench.training
    seen: list[str] = []

    def look(module: torch.nn.Module, *_: Any) -> None:
        if below_the_model and module is training.model:
            return
        if torch.is_autocast_enabled(training.device_type):
            seen.append(str(torch.get_autocast_dtype(training.device_type)))

    with undone(training, bench.reach):
        handle = register_module_forward_pre_hook(look)
        try:
            bench.forward_here(bench.first)
        finally:
            handle.remove()
    return seen[0].removeprefix("torch.") if seen else None


def _cosine(first: dict[Tensor, Tensor], second: dict[Tensor, Tensor]) -> float | None:
    product = 0.0
    size = 0.0
    other = 0.0
    for parameter, gradient in first.items():
        if parameter not in second or gradient.layout is not torch.strided:
            continue
        left = gradient.double().flatten()
        right = second[parameter].double().flatten()
        product += float(left @ right)
        size += float(left @ left)
        other += float(right @ right)
    if not other:
        return None
    return product / (size * other) ** 0.5 if size else 0.0  # all of it was lost


def one_batch(bench: Bench, first: FirstSteps) -> OneBatch:
    """Make updates on the first batch, with the same random numbers."""
    if len(first.optimizers) > 1:
        return OneBatch(losses=(), num_optimizers=len(first.optimizers))
    as_it_is = _by_heart(bench)
    measured = OneBatch(
        losses=as_it_is.losses,
        largest_rate=max(first.rates().rates, default=0.0),
        has_scaler=any(scaler.is_enabled() for scaler in bench.training.scalers()),
    )
    if not ranks.any_rank(measured.rises):
        return measured
    for divisor in LOWER_RATES:
        lower = _by_heart(bench, as_it_is.rates, divisor)
        measured = replace(measured, losses_at_lower_rate=lower.losses, divided_by=divisor)
        if ranks.any_rank(measured.is_rate_too_high):
            break
    return measured


class _ByHeart(NamedTuple):
    """Updates on one batch."""

    losses: tuple[float, ...]
    rates: Sequence[Sequence[Any]]
    """The learning rates of the groups before each update: a schedule may move them."""


def _by_heart(bench: Bench, planned: Sequence[Sequence[Any]] = (), divisor: int = 1) -> _ByHeart:
    """Make updates on the first batch, at the rates in force or at a part of the planned ones."""
    losses = []
    seen = []
    groups = bench.training.optimizer.param_groups
    with undone(bench.training, bench.reach, with_weights=True):
        for number in range(_NUM_BY_HEART + 1):
            if planned:
                _set_rates(groups, planned[number], divisor)
            seen.append([group.get("lr") for group in groups])
            loss = bench.update(bench.updates[0])
            if loss is not None:
                losses.append(loss)
    return _ByHeart(tuple(losses), seen)


def _set_rates(groups: Sequence[dict[str, Any]], planned: Sequence[Any], divisor: int) -> None:
    for group, rate in zip(groups, planned, strict=True):
        if isinstance(rate, float):
            group["lr"] = rate / divisor


def gradient_reach(bench: Bench, first: FirstSteps, base: Look) -> GradientReach:
    """Find parameters without a gradient that the loss depends on."""
    trained = _trained(first)
    without = [(name, part) for name, part in trained if part not in first.with_gradient]
    all_zero = bool(trained) and not first.with_values
    zero = _with_zeros_only(first, trained)
    num_trained = sum(part.numel() for _, part in trained)
    norm = _norm_after_backward(bench) if ranks.any_rank(all_zero) else None
    used: tuple[str, ...] | None = ()
    if ranks.any_rank(bool(without)):
        used = _used(bench, without, base)
    return GradientReach(
        num_parameters=len(trained),
        without=tuple(name for name, _ in without),
        without_but_used=used,
        always_zero=tuple(name for name, _ in zero),
        does_zero_count=_does_count(bench, [part for _, part in zero], base),
        share_always_zero=sum(part.numel() for _, part in zero) / max(num_trained, 1),
        all_zero=all_zero,
        norm_after_backward=norm,
    )


def _trained(first: FirstSteps) -> list[tuple[str, Tensor]]:
    """Return the parameters that require a gradient and that an optimizer holds."""
    held: set[Tensor] = set()
    for optimizer in first.optimizers.values():
        for group in optimizer.param_groups:
            held |= set(group["params"])
    named = first.named_parameters()
    return [(name, part) for name, part in named if part.requires_grad and part in held]


def _with_zeros_only(
    first: FirstSteps, trained: list[tuple[str, Tensor]]
) -> list[tuple[str, Tensor]]:
    """Return the parameters whose gradients were all 0, if others were not."""
    if not first.with_values:
        return []
    zero = first.with_gradient - first.with_values
    return [(name, part) for name, part in trained if part in zero]


def _does_count(bench: Bench, parameters: list[Tensor], base: Look) -> bool:
    """Return whether the loss depends on some parameters."""
    if ranks.any_rank(not parameters or base.loss is None):
        return False
    assert base.loss is not None
    return _changes_loss(bench, parameters, base.loss)


def _norm_after_backward(bench: Bench) -> float | None:
    """Return the gradient norm right after the first backward pass; None if there was none."""
    with undone(bench.training, bench.reach):
        _, looks = bench.gradients([bench.first])
    norms = looks[0].norms
    return norms[0][1] if norms else None


def _used(bench: Bench, without: list[tuple[str, Tensor]], base: Look) -> tuple[str, ...] | None:
    """Return which parameters change the loss when they are changed."""
    if base.loss is None:
        return None
    if not _changes_loss(bench, [parameter for _, parameter in without], base.loss):
        return ()
    found = [
        name
        for name, parameter in without[:_MAX_TRIED]
        if _changes_loss(bench, [parameter], base.loss)
    ]
    return tuple(found) or tuple(name for name, _ in without)


def _changes_loss(bench: Bench, parameters: list[Tensor], loss: float) -> bool:
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter in parameters:
                ramp = torch.linspace(0.1, 0.4, parameter.numel(), device=parameter.device)
                parameter += ramp.reshape(parameter.shape).to(parameter.dtype)
        look = bench.forward(bench.first)
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)
    return look.loss is not None and look.loss != loss


def weights_move(first: FirstSteps, before: dict[Tensor, Tensor]) -> WeightsMove:
    """Compare the weights with copies from before the first updates."""
    unmoved = []
    frozen = []
    num_pushed = 0
    held: set[Tensor] = set()
    for optimizer in first.optimizers.values():
        for group in optimizer.param_groups:
            held |= set(group["params"])
    for name, parameter in first.named_parameters():
        if parameter not in before:
            continue
        is_same = torch.equal(parameter.detach().cpu(), before[parameter])
        if not parameter.requires_grad:
            if not is_same and parameter in held:
                frozen.append(name)
        elif parameter in first.pushed and first.pushed[parameter] is None:
            num_pushed += 1
            if is_same:
                unmoved.append(name)
        elif parameter in first.pushed:
            num_pushed += 1  # in half precision: `lost_updates` says whether it moved
    rates = [rate for rate in first.rates().rates if rate == rate]
    return WeightsMove(
        num_parameters=num_pushed,
        unmoved=tuple(unmoved),
        frozen_but_moved=tuple(frozen),
        has_rate=not rates or max(map(abs, rates)) > 0,
    )


def lost_updates(first: FirstSteps, before: dict[Tensor, Tensor]) -> LostUpdates:
    """Count weights in half precision that had a gradient and are the same."""
    num_weights = 0
    num_unchanged = 0
    dtype = None
    for parameter, where in first.pushed.items():
        if where is None or parameter not in before:
            continue
        dtype = str(parameter.dtype).removeprefix("torch.")
        same = parameter.detach().cpu() == before[parameter]
        num_weights += int(where.sum())
        num_unchanged += int((same & where.cpu()).sum())
    return LostUpdates(
        dtype=dtype,
        num_weights=num_weights,
        num_unchanged=num_unchanged,
        num_updates=first.num_updates,
    )


def tied_weights(bench: Bench) -> TiedWeights:
    """Compare embeddings with output layers of the same shape."""
    tied = []
    only_equal = []
    modules = bench.training.model.named_modules()
    named = [(name.removeprefix("_orig_mod."), module) for name, module in modules]
    embeddings = [pair for pair in named if isinstance(pair[1], torch.nn.Embedding)]
    linears = [pair for pair in named if isinstance(pair[1], torch.nn.Linear)]
    for name, embedding in embeddings:
        for other, linear in linears:
            first = embedding.weight
            second = linear.weight
            if first.shape != second.shape or bench.training.is_sharded:
                continue
            if first is second or first.data_ptr() == second.data_ptr():
                tied.append(f"{name} and {other}")
            elif torch.equal(first, second) and bool((first != first.flatten()[0]).any()):
                only_equal.append(f"{name} and {other}")
    return TiedWeights(tied=tuple(tied), only_equal=tuple(only_equal))


def unregistered(bench: Bench, first: FirstSteps) -> Unregistered:
    """Find parameters that torch does not see."""
    hidden = unregistered_parameters(bench.training.model)
    num_parameters = len(list(bench.training.model.parameters()))
    num_held = 0
    for optimizer in first.optimizers.values():
        num_held += sum(len(group["params"]) for group in optimizer.param_groups)
    extra = max(0, num_held - num_parameters)
    return Unregistered(hidden=tuple(hidden), num_held=min(extra, len(hidden)))


def base_look(bench: Bench) -> tuple[Look, Look]:
    """Run the first batch twice with all modules watched."""
    first = bench.forward(bench.first, watch_modules=True)
    return first, bench.forward(bench.first, watch_modules=True)


def is_same(first: Look, second: Look) -> bool:
    """Return whether two runs gave the same scores and loss to the bit."""
    if first.loss is None or first.loss != second.loss:
        return False
    pairs = zip(first.losses, second.losses, strict=False)
    return all(torch.equal(old.scores, new.scores) for old, new in pairs)
