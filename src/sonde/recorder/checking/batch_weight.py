"""Measures what the loss is divided by: both halves of a batch are run, and the losses of several
batches are compared with the means over the places that count.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sonde.forensics.checks.batch_weight import BatchWeight
from sonde.recorder.batch_tree import without_rows
from sonde.recorder.checking.bench import Bench, feed_of_batch
from sonde.recorder.checking.forward_watch import Look, norm_of
from sonde.recorder.checking.snapshot import undone

_MIN_ROWS: Final = 4
_SAME: Final = 0.02


def batch_weight(bench: Bench, looks: Sequence[Look]) -> BatchWeight:
    """Measure both. `looks` are those at the first batches."""
    return replace(_of_halves(bench), counted=_counted_of_all(looks))


def _counted_of_all(looks: Sequence[Look]) -> tuple[float, ...]:
    """Return the share of places that count in each batch, if all losses are their sums divided by
    the number of all places.
    """
    shares = []
    for look in looks:
        call = look.main_loss()
        if call is None or call.counts is None or not look.roots or not call.mean:
            return ()
        share = float(call.counts.float().mean())
        if abs(look.roots[0] / call.mean - share) > _SAME * share:
            return ()
        shares.append(share)
    return tuple(shares)


def _of_halves(bench: Bench) -> BatchWeight:
    """Run the first batch and its halves."""
    sizes = tuple(sum(feed.num_rows for feed in update) for update in bench.updates)
    feed = bench.first
    count = feed.num_rows
    if count < _MIN_ROWS or len(bench.updates[0]) > 1:
        return BatchWeight(unfit="The first update has few rows, or several micro-batches.")
    if _are_gradients_changed(bench):
        return BatchWeight(
            unknown="The gradients are changed between backward and the optimizer's step."
        )
    losses = []
    for keep in (range(count), range(count // 2), range(count // 2, count)):
        part = feed_of_batch(without_rows(feed.batch(), list(keep)), feed.moment, feed.last)
        look = bench.forward(part)
        loss = look.returned if look.loss is None else look.loss
        if loss is None:
            return BatchWeight(unknown="The loss of a part of the batch was not seen.")
        losses.append(loss)
    whole, first, second = losses
    return BatchWeight(num_rows=sizes, loss=whole, of_halves=(first, second))


def _are_gradients_changed(bench: Bench) -> bool:
    """Return whether the step clips or divides the gradients: then a sum may be meant."""
    with undone(bench.training, bench.reach):
        gradients, looks = bench.gradients(bench.updates[0])
    norms = looks[-1].norms
    at_step = norm_of(gradients.values())
    if not norms or not norms[-1][1] or not at_step:
        return True
    return abs(at_step / norms[-1][1] - 1) > _SAME
