"""What all ranks found at a scene, put together. Pure."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.scene_evidence import SceneEvidence, SceneRow, finite
from sonde.recorder.update import Update
from sonde.spikes.detectors import Event


class RankFound(NamedTuple):
    """What one rank tells the others."""

    own: float | None
    is_exact: bool
    others: dict[str, tuple[float, float]]
    rows: list[SceneRow]
    row_losses: list[float]
    row_weights: list[float]
    row_problem: str
    num_odd_rows: int
    broken: BrokenNumbers | None


def merged(
    update: Update, recent: Sequence[Update], event: Event, found: Sequence[RankFound]
) -> SceneEvidence:
    """Return what all ranks found together."""
    own, is_exact = _own_of(found)
    rows = [row for rank in found for row in rank.rows]
    row_losses: list[float] = []
    row_weights: list[float] = []
    if all(rank.row_losses for rank in found):
        for rank in found:
            row_losses += rank.row_losses
            row_weights += rank.row_weights
    problems = [rank.row_problem for rank in found if rank.row_problem]
    rates = [(other.step, tuple(other.rates)) for other in recent]
    return SceneEvidence(
        step=update.step,
        metric=event.metric,
        own=own,
        is_exact=is_exact,
        normal=event.baseline if event.metric == "loss" else math.nan,
        others=_others_of(found),
        rows=sorted(rows, key=lambda row: -finite(row.loss)),
        row_losses=row_losses,
        row_weights=row_weights,
        row_problem=problems[0] if problems else "",
        loss_before=recent[-1].loss or math.nan if recent else math.nan,
        num_odd_rows=sum(rank.num_odd_rows for rank in found),
        num_rows=len(found) * update.num_rows,
        shape=_shape_of(update),
        other_shapes=_shapes_of(recent),
        rates=[*rates, (update.step, tuple(update.rates))],
        broken=_broken_of(found),
    )


def _shapes_of(updates: Sequence[Update]) -> list[str]:
    """Return the shapes of the batches that are still held."""
    return sorted({_shape_of(update) for update in updates if update.micro})


def _shape_of(update: Update) -> str:
    """Return the shape of the first tensor of an update's batch; empty if it has none."""
    tensors = update.micro[0].tensors if update.micro else []
    return " x ".join(map(str, tensors[0].shape)) if tensors else ""


def _own_of(found: Sequence[RankFound]) -> tuple[float, bool | None]:
    """Return the mean loss of the step over the ranks, and whether it is exact on all of them; NaN
    and None if a rank could not run it again.
    """
    losses = [rank.own for rank in found if rank.own is not None]
    if len(losses) < len(found):
        return math.nan, None
    return sum(losses) / len(losses), all(rank.is_exact for rank in found)


def _others_of(found: Sequence[RankFound]) -> list[tuple[float, float]]:
    """Return the losses then and now of the batches that all ranks have run, as means over them."""
    others = []
    for step in found[0].others:
        pairs = [rank.others[step] for rank in found if step in rank.others]
        if len(pairs) == len(found):
            then = sum(pair[0] for pair in pairs) / len(pairs)
            now = sum(pair[1] for pair in pairs) / len(pairs)
            others.append((then, now))
    return others


def _broken_of(found: Sequence[RankFound]) -> BrokenNumbers | None:
    """Return where the numbers of the first rank that has such a place break."""
    broken = [number for number, rank in enumerate(found) if rank.broken is not None]
    if not broken:
        return None
    first = found[broken[0]].broken
    assert first is not None
    return replace(first, ranks=tuple(broken), world_size=len(found))
