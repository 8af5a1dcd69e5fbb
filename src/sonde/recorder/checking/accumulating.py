"""Measures how much each micro-batch counts in its update.

What backward is called on, divided by the mean loss of the micro-batch, is its weight. A script may
also divide the gradients themselves before the optimizer's step, so their norm is compared too.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sonde.forensics.checks.accumulation import Accumulation
from sonde.recorder.checking.bench import Bench, Feed
from sonde.recorder.checking.first_steps import FirstSteps
from sonde.recorder.checking.forward_watch import Look, LossCall, norm_of
from sonde.recorder.checking.snapshot import undone

_IGNORED: Final = -100
_CLOSE: Final = 0.02
_UNCLEAR: Final = "The loss of a micro-batch is not that of one loss function of torch."
_CHANGED: Final = "The gradients are changed between backward and the optimizer's step."


class _Root(NamedTuple):
    """One backward pass."""

    value: float
    """What it was called on."""
    calls: Sequence[LossCall]
    """The loss functions that were called since the one before."""


def accumulation(bench: Bench, first: FirstSteps, *, is_next_token: bool) -> Accumulation:
    """Measure the weight of each micro-batch of an update."""
    feeds = _most_unequal([update for update in bench.updates if len(update) > 1])
    feeds = feeds or bench.updates[0]
    with undone(bench.training, bench.reach):
        gradients, looks = bench.gradients(feeds)
    if len(feeds) > 1 and first.is_cleared_within:
        return Accumulation(num_micro=len(feeds), is_cleared=True)
    roots: list[_Root] = []
    for look in looks:
        roots += _roots_of(look)
    if len(feeds) == 1:
        return _inside_one_step(bench, gradients, looks[0], roots, is_next_token=is_next_token)
    changed = _norms_between(looks)
    if changed is not None or not _are_clear(roots) or len(roots) != len(feeds):
        return Accumulation(num_micro=len(feeds), norms_between=changed, unknown=_UNCLEAR)
    return _weighed(bench, gradients, looks, roots, is_next_token=is_next_token)


def _inside_one_step(
    bench: Bench,
    gradients: dict[Tensor, Tensor],
    look: Look,
    roots: Sequence[_Root],
    *,
    is_next_token: bool,
) -> Accumulation:
    """Measure the backward passes within one call of the step function, which may also be those of
    several tasks.
    """
    if len(roots) > 1 and not any(root.calls for root in roots):
        return Accumulation(num_micro=len(roots), unknown=_UNCLEAR)
    if any(not root.calls for root in roots):
        return Accumulation(num_micro=1)  # several losses of one forward pass
    if not _are_clear(roots):
        return Accumulation(num_micro=len(roots), unknown=_UNCLEAR)
    measured = _weighed(bench, gradients, [look], roots, is_next_token=is_next_token)
    targets = [root.calls[0].target for root in roots]
    are_alike = _are_of_micro_batches(roots) or _are_parts_of_one(targets, bench.first)
    return replace(
        measured,
        are_alike=are_alike,
        is_cleared=are_alike and _is_cleared(look),
        norms_between=_norms_between([look]),
    )


def _weighed(
    bench: Bench,
    gradients: dict[Tensor, Tensor],
    looks: Sequence[Look],
    roots: Sequence[_Root],
    *,
    is_next_token: bool,
) -> Accumulation:
    """Return the weights of some backward passes with one loss function each."""
    scale = _scale(bench)
    counts = [_num_targets(root.calls[0]) for root in roots]
    factor = _factor(gradients, looks, scale, (len(roots), sum(counts)))
    if factor is None:
        return Accumulation(num_micro=len(roots), unknown=_CHANGED)
    return Accumulation(
        num_micro=len(roots),
        weights=tuple(root.value / root.calls[0].mean * factor / scale for root in roots),
        counts=tuple(counts),
        is_carried_on=_are_carried_on(roots),
        ignores_labels=is_next_token and any(map(_ignores, roots)),
    )


def _are_carried_on(roots: Sequence[_Root]) -> bool:
    """Return whether each backward pass is called on the sum of the losses up to there."""
    if len(roots) < 2:
        return False
    share = roots[0].value / roots[0].calls[0].mean
    total = 0.0
    for number, root in enumerate(roots):
        alone = share * root.calls[0].mean
        total += alone
        if not abs(root.value - total) <= _CLOSE * abs(total):
            return False
        # Beside a large loss, the small ones before it do not show.
        if number > 0 and abs(root.value - alone) <= _CLOSE * abs(alone):
            return False
    return True


def _are_clear(roots: Sequence[_Root]) -> bool:
    """Return whether each backward pass is that of one loss function."""
    return all(len(root.calls) == 1 and root.calls[0].mean for root in roots)


def _roots_of(look: Look) -> list[_Root]:
    found = []
    begin = 0
    for value, end in zip(look.roots, look.losses_at_root, strict=True):
        found.append(_Root(value, look.losses[begin:end]))
        begin = end
    return found


def _ignores(root: _Root) -> bool:
    counts = root.calls[0].counts
    return counts is not None and not bool(counts.all())


def _num_targets(call: LossCall) -> int:
    return call.target.numel() if call.counts is None else int(call.counts.sum())


def _scale(bench: Bench) -> float:
    return bench.training.loss_scale()


def _most_unequal(updates: Sequence[Sequence[Feed]]) -> Sequence[Feed]:
    """Return the update whose micro-batches differ most in the number of labels that count; the
    first, if no batch leaves any out.
    """
    found: Sequence[Feed] = ()
    largest = 0.0
    for update in updates:
        counts = [_num_labels(feed) for feed in update]
        ratio = max(counts) / max(min(counts), 1)
        if ratio > largest:
            found = update
            largest = ratio
    return found


def _num_labels(feed: Feed) -> int:
    for tensor in feed.tensors:
        if tensor.dtype is torch.int64 and bool((tensor == _IGNORED).any()):
            return int((tensor != _IGNORED).sum())
    return 1


def _factor(
    gradients: dict[Tensor, Tensor], looks: Sequence[Look], scale: float, divisors: Sequence[int]
) -> float | None:
    """Return by what gradients are multiplied after the last backward pass: 1 or one divided by one
    of `divisors`; None if it is something else. What clipping does is left out.
    """
    norms = [pair for look in looks for pair in look.norms]
    if not norms or not norms[-1][1]:
        return 1.0
    at_step = looks[-1].clipped
    if at_step is None:
        at_step = norm_of(gradients.values())
    for divisor in (1, *divisors):
        for unscaled in (1.0, scale):
            expected = norms[-1][1] / divisor / unscaled
            if abs(at_step - expected) <= _CLOSE * expected:
                return 1 / divisor
    return None


def _norms_between(looks: Sequence[Look]) -> tuple[float, float] | None:
    """Return the gradient norm after a backward pass and before the next, if they are not the
    same: gradients were clipped or divided in between. None if they are, or were cleared.
    """
    norms = [pair for look in looks for pair in look.norms]
    for (_, after), (before, _) in itertools.pairwise(norms):
        if before and abs(after - before) > _CLOSE * after:
            return after, before
    return None


def _are_of_micro_batches(roots: Sequence[_Root]) -> bool:
    """Return whether loss functions within one step are those of micro-batches: the same function
    of the same classes, and other targets each time.
    """
    calls = [root.calls[0] for root in roots]
    if not calls:
        return False
    first = calls[0]
    for number, call in enumerate(calls):
        if call.counts is None or call.function != first.function:
            return False
        if call.scores.dim() != first.scores.dim():
            return False
        if call.scores.shape[call.class_dim] != first.scores.shape[first.class_dim]:
            return False
        if any(_are_same(call.target, other.target) for other in calls[:number]):
            return False
    return True


def _are_parts_of_one(targets: Sequence[Tensor], feed: Feed) -> bool:
    """Return whether targets are those of one tensor of the batch, part after part: then they are
    of micro-batches, whatever the loss function is.
    """
    together = torch.cat([target.reshape(-1) for target in targets])
    if len(torch.unique(together)) < 2:
        return False  # real or fake, and not what a batch holds
    for tensor in feed.tensors:
        if tensor.numel() == together.numel():
            values = tensor.reshape(-1).to(together.device, together.dtype)
            if torch.equal(values, together):
                return True
    return False


def _are_same(target: Tensor, other: Tensor) -> bool:
    return target.shape == other.shape and bool((target == other).all())


def _is_cleared(look: Look) -> bool:
    """Return whether gradients were gone at every backward pass after the first."""
    if len(look.norms) < 2:
        return False
    return all(before == 0 for before, _ in look.norms[1:]) and look.norms[0][1] > 0
