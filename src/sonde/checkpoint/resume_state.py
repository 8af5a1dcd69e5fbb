"""What of the trained state is as it was: weights, moments, step count, which tensors train. Pure,
and needs no torch.

A tensor is the same if its hash is. If it is not, the digests of other steps are asked: tensors as
at the beginning were never loaded, and those of another step come from another checkpoint.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sonde.checkpoint.digest_log import MomentDigest, StateDigest, TensorDigest
from sonde.checkpoint.resume_report import (
    CHANGED,
    LOST,
    MOMENTS,
    RANKS,
    SAME,
    STEP_COUNT,
    TRAINABLE,
    UNKNOWN,
    WEIGHTS,
    Finding,
    is_close,
    listed,
    share,
)

_ROUNDED: Final = 0.01
"""Norms differ by less than this fraction if only the precision was changed."""
_FRESH: Final = 0.05
"""Norms within this fraction of those at the beginning look freshly initialised."""


def has_weights_of(state: StateDigest, other: StateDigest) -> bool:
    """Return whether two states have the same weights."""
    return bool(state.tensors) and not _differing(state.tensors, other.tensors, with_names=True)


def as_at_the_beginning(now: StateDigest, states: Sequence[StateDigest]) -> list[str]:
    """Return the tensors that are as they were before the first step, though training has changed
    them since.
    """
    start = next((state for state in states if state.step == 0), None)
    later = [state for state in states if state.step > 0]
    if start is None or not later:
        return []
    changed = _differing(start.tensors, later[0].tensors)
    still = _differing(start.tensors, now.tensors)
    return [name for name in changed if name in now.tensors and name not in still]


def weights(before: StateDigest, now: StateDigest, others: Sequence[StateDigest]) -> Finding:
    """Compare weights and buffers with those of the checkpoint."""
    if now.is_sharded and now.world_size != before.world_size:
        text = "cannot tell: they are split over another number of ranks"
        return Finding(what=WEIGHTS, status=UNKNOWN, text=text)
    differing = _differing(before.tensors, now.tensors)
    figures = {"num_tensors": len(now.tensors), "differing": differing}
    if not differing:
        text = _other_tensors(before.tensors, now.tensors)
        if text:
            return Finding(what=WEIGHTS, status=CHANGED, text=text, figures=figures)
        return Finding(what=WEIGHTS, status=SAME, text="as they were", figures=figures)
    kinds = {(before.tensors[name].dtype, now.tensors[name].dtype) for name in differing}
    is_other_precision = all(old != own for old, own in kinds)
    if is_other_precision and _are_near(before, now, differing, _ROUNDED):
        old, own = min(kinds)
        text = f"as they were, in {own} instead of {old}"
        return Finding(what=WEIGHTS, status=CHANGED, text=text, figures=figures)
    text = _where_from(before, now, others, differing)
    return Finding(what=WEIGHTS, status=LOST, text=text, figures=figures)


def _other_tensors(before: Mapping[str, TensorDigest], now: Mapping[str, TensorDigest]) -> str:
    """Say which tensors only one state has, or has in another shape; empty if there are none."""
    shared = [name for name in now if name in before]
    resized = [name for name in shared if list(now[name].shape) != list(before[name].shape)]
    kinds = {
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
        "of another shape": resized,
    }
    texts = [
        f"{kind}: {share(len(names), len(now), 'tensor')} ({listed(names)})"
        for kind, names in kinds.items()
        if names
    ]
    return "; ".join(texts)


def _differing(
    before: Mapping[str, TensorDigest],
    now: Mapping[str, TensorDigest],
    *,
    with_names: bool = False,
) -> list[str]:
    """Return the names of tensors that differ; with `with_names`, also of those that only one
    state has.
    """
    found = []
    for name, tensor in now.items():
        other = before.get(name)
        if other is None or list(other.shape) != list(tensor.shape):
            if with_names:
                found.append(name)
        elif other.hash != tensor.hash:
            found.append(name)
    if with_names:
        found += [name for name in before if name not in now]
    return found


def _where_from(
    before: StateDigest, now: StateDigest, others: Sequence[StateDigest], differing: Sequence[str]
) -> str:
    """Say where tensors come from that are not those of the checkpoint."""
    how_many = share(len(differing), len(now.tensors), "tensor")
    is_all = _is_most(before, differing)
    for other in sorted(others, key=lambda state: -state.step):
        if other.step == before.step:
            continue
        own = {name: now.tensors[name] for name in differing}
        there = {name: other.tensors[name] for name in differing if name in other.tensors}
        if len(there) < len(own) or _differing(there, own):
            continue
        if other.step == 0:
            return _not_loaded(how_many, differing, is_all=is_all)
        return f"those of step {other.step:,}, not of step {before.step:,} ({how_many})"
    start = next((state for state in others if state.step == 0), None)
    if start is not None and is_all and _look_fresh(start, before, now, differing):
        return (
            f"not those of the checkpoint ({how_many}): their norms are those of freshly"
            " initialised ones, so they were not loaded"
        )
    first = differing[0]
    return (
        f"{how_many} {'is' if len(differing) == 1 else 'are'} not as in the checkpoint:"
        f" {listed(differing)} (norm of {first} {now.tensors[first].norm:.4g}, was"
        f" {before.tensors[first].norm:.4g})"
    )


def _look_fresh(
    start: StateDigest, before: StateDigest, now: StateDigest, names: Sequence[str]
) -> bool:
    """Return whether tensors have the norms of the beginning, and not those of the checkpoint."""
    is_like_start = _are_near(start, now, names, _FRESH)
    return is_like_start and not _are_near(before, now, names, _FRESH)


def _is_most(before: StateDigest, differing: Sequence[str]) -> bool:
    """Return whether all tensors differ that training changes."""
    trained = [name for name, tensor in before.tensors.items() if tensor.is_trainable]
    return len(differing) >= len(trained)


def _not_loaded(how_many: str, differing: Sequence[str], *, is_all: bool) -> str:
    if is_all:
        return "as at the beginning of the run: they were not loaded"
    return f"{how_many} as at the beginning of the run, so not loaded: {listed(differing)}"


def _are_near(
    before: StateDigest, now: StateDigest, names: Sequence[str], tolerance: float
) -> bool:
    for name in names:
        other = before.tensors.get(name)
        if other is None or not is_close(other.norm, now.tensors[name].norm, tolerance):
            return False
    return True


def moments(before: StateDigest, now: StateDigest, others: Sequence[StateDigest]) -> Finding | None:
    """Compare the state of the optimizer with that of the checkpoint."""
    if _is_other_optimizer(before, now):
        text = f"another optimizer: {now.optimizer}, was {before.optimizer}"
        return Finding(what=MOMENTS, status=CHANGED, text=text)
    wanted = _still_trained(before, now)
    if not wanted:
        return None
    own = _pairs(now)
    if now.is_sharded and now.world_size != before.world_size:
        return _sharded_moments(wanted, own)
    empty = [pair for pair, moment in wanted.items() if _is_empty(own.get(pair), moment)]
    if empty:
        text = _empty_text(now, wanted, own, empty)
        figures = {"num_tensors": len(wanted), "num_empty": len(empty)}
        return Finding(what=MOMENTS, status=LOST, text=text, figures=figures)
    return _other_moments(before, now, others, wanted)


def _is_other_optimizer(before: StateDigest, now: StateDigest) -> bool:
    return bool(before.optimizer and now.optimizer) and before.optimizer != now.optimizer


def _other_moments(
    before: StateDigest,
    now: StateDigest,
    others: Sequence[StateDigest],
    wanted: Mapping[tuple[str, str], MomentDigest],
) -> Finding:
    """Compare moments that are all there."""
    own = _pairs(now)
    differing = [pair for pair in wanted if own[pair].hash != wanted[pair].hash]
    figures = {"num_tensors": len(wanted), "num_other": len(differing)}
    if not differing:
        return Finding(what=MOMENTS, status=SAME, text="as they were", figures=figures)
    near = [is_close(own[pair].norm, wanted[pair].norm, _ROUNDED) for pair in differing]
    if all(near) and _has_other_precision(before, now):
        text = "as they were, in another precision"
        return Finding(what=MOMENTS, status=CHANGED, text=text, figures=figures)
    text = _whose_moments(before, others, own, wanted, differing)
    return Finding(what=MOMENTS, status=LOST, text=text, figures=figures)


def _still_trained(before: StateDigest, now: StateDigest) -> dict[tuple[str, str], MomentDigest]:
    """Return the moments of the tensors that are trained now as they were then."""
    found = {}
    for pair, moment in _pairs(before).items():
        tensor = now.tensors.get(pair[1])
        is_same_shape = tensor is not None and pair[1] in before.tensors
        if is_same_shape and tensor is not None:
            shape = list(before.tensors[pair[1]].shape)
            is_same_shape = tensor.is_trainable and list(tensor.shape) == shape
        is_unnamed = pair[1] not in before.tensors
        if is_same_shape or is_unnamed:
            found[pair] = moment
    return found


def _pairs(state: StateDigest) -> dict[tuple[str, str], MomentDigest]:
    found = {}
    for kind, by_name in state.moments.items():
        for name, moment in by_name.items():
            found[kind, name] = moment
    return found


def _is_empty(own: MomentDigest | None, before: MomentDigest) -> bool:
    return own is None or (own.norm == 0 and before.norm > 0)


def _empty_text(
    now: StateDigest,
    wanted: Mapping[tuple[str, str], MomentDigest],
    own: Mapping[tuple[str, str], MomentDigest],
    empty: Sequence[tuple[str, str]],
) -> str:
    how_many = share(len(empty), len(wanted), "tensor")
    names = sorted({name for _, name in empty})
    if len(empty) < len(wanted):
        return f"EMPTY ({how_many}): not loaded for {listed(names)}"
    if own and now.counts and now.counts[1] > 0:
        return f"EMPTY ({how_many}), though the step count is {now.counts[1]:,.0f}: they are zero"
    return f"EMPTY ({how_many}): the state of the optimizer was not loaded"


def _sharded_moments(
    wanted: Mapping[tuple[str, str], MomentDigest], own: Mapping[tuple[str, str], MomentDigest]
) -> Finding:
    empty = [pair for pair in wanted if pair not in own]
    if len(empty) == len(wanted):
        text = f"EMPTY ({share(len(empty), len(wanted), 'tensor')}): the state was not loaded"
        return Finding(what=MOMENTS, status=LOST, text=text)
    text = "cannot tell: they are split over another number of ranks"
    return Finding(what=MOMENTS, status=UNKNOWN, text=text)


def _has_other_precision(before: StateDigest, now: StateDigest) -> bool:
    return any(
        name in before.tensors and before.tensors[name].dtype != tensor.dtype
        for name, tensor in now.tensors.items()
    )


def _whose_moments(
    before: StateDigest,
    others: Sequence[StateDigest],
    own: Mapping[tuple[str, str], MomentDigest],
    wanted: Mapping[tuple[str, str], MomentDigest],
    differing: Sequence[tuple[str, str]],
) -> str:
    how_many = share(len(differing), len(wanted), "tensor")
    for other in sorted(others, key=lambda state: -state.step):
        there = _pairs(other)
        is_of_other = all(
            pair in there and there[pair].hash == own[pair].hash for pair in differing
        )
        if other.step != before.step and is_of_other:
            return f"those of step {other.step:,}, not of step {before.step:,} ({how_many})"
    names = sorted({name for _, name in differing})
    kind, first = differing[0]
    return (
        f"{how_many} {'is' if len(differing) == 1 else 'are'} not as in the checkpoint:"
        f" {listed(names)} (norm of {kind} of {first} {own[kind, first].norm:.4g}, was"
        f" {wanted[kind, first].norm:.4g})"
    )


def step_count(before: StateDigest, now: StateDigest) -> Finding | None:
    """Compare how many updates the optimizer has counted."""
    if before.counts is None:
        return None
    was = before.counts[1]
    own = 0.0 if now.counts is None else now.counts[1]
    figures = {"now": own, "before": was}
    if own == was:
        return Finding(what=STEP_COUNT, status=SAME, text=f"{own:,.0f}, as it was", figures=figures)
    if _is_other_optimizer(before, now):
        return None
    text = f"{own:,.0f}, was {was:,.0f}"
    if own == 0:
        text += ": the optimizer begins again, with the correction of its first steps"
    return Finding(what=STEP_COUNT, status=LOST, text=text, figures=figures)


def trainable(before: StateDigest, now: StateDigest) -> Finding:
    """Compare which tensors are trained."""
    shared = [name for name in now.tensors if name in before.tensors]
    frozen = []
    thawed = []
    for name in shared:
        if before.tensors[name].is_trainable and not now.tensors[name].is_trainable:
            frozen.append(name)
        if now.tensors[name].is_trainable and not before.tensors[name].is_trainable:
            thawed.append(name)
    texts = []
    if frozen:
        how_many = share(len(frozen), before.num_trainable, "trained tensor")
        texts.append(f"{how_many} frozen now: {listed(frozen)}")
    if thawed:
        texts.append(f"{len(thawed)} trained now that were frozen: {listed(thawed)}")
    if texts:
        return Finding(what=TRAINABLE, status=CHANGED, text="; ".join(texts))
    return Finding(what=TRAINABLE, status=SAME, text="the same tensors")


def num_ranks(before: StateDigest, now: StateDigest) -> Finding | None:
    """Compare the number of ranks; nothing if it is the same."""
    if before.world_size == now.world_size:
        return None
    text = f"{now.world_size}, were {before.world_size}"
    return Finding(what=RANKS, status=CHANGED, text=text)
