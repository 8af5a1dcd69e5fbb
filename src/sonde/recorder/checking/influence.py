"""Measures what influences a prediction: something is changed, the same forward pass is run again
with the same random numbers, and scores that may not move are compared.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from sonde import ranks
from sonde.forensics.checks.influence import Influence
from sonde.forensics.checks.label_shift import LabelShift, shift_of
from sonde.recorder.checking.bench import Bench, Feed
from sonde.recorder.checking.forward_watch import Look
from sonde.recorder.checking.targets import Aligned

_QUANTILES: Final = (0.34, 0.67)
"""After which of the positions that count tokens are changed."""
_MAX_OFFSET: Final = 3
_NOT_NEXT: Final = "The targets are not the next tokens."
NO_TOKENS: Final = "The model looks up no tokens that the loss has targets for."
DIFFERS: Final = "The same step gives another result each time."


class Base(NamedTuple):
    """The first batch as it is, run once with all modules watched."""

    feed: Feed
    look: Look
    pair: Aligned | None
    is_repeatable: bool
    """Whether running it again gave the same to the bit."""
    more_ids: Sequence[Tensor] = ()
    """The tokens of the batches after it."""


class Moved(NamedTuple):
    """What a change of tokens did."""

    positions: Tensor
    """Rows by positions: whether the scores there moved."""
    largest: Tensor
    """Rows by positions: by how much, as a share of the largest score."""
    look: Look


def with_layout(bench: Bench, base: Base, other: Aligned | None) -> Base:
    """Return the base with rows and positions as they are: what is in one row depends on one
    another. `other` are its tokens with both exchanged, None if that cannot be meant.
    """
    if ranks.any_rank(other is None or not base.is_repeatable) or other is None:
        return base
    found = base
    for candidate in (base._replace(pair=other), base):
        assert candidate.pair is not None
        first = torch.zeros_like(candidate.pair.ids, dtype=torch.bool)
        first[:, 0] = True
        moved = move_tokens(bench, candidate, first)
        if moved is not None and bool(moved.positions[:, 1:].any()):
            found = candidate
    return found


def changed_tokens(base: Base, places: Tensor) -> dict[int, Tensor]:
    """Return other tokens at some places, for every lookup of the same tokens."""
    pair = base.pair
    assert pair is not None
    ids = pair.ids
    size = max(2, min(pair.num_embeddings, int(ids.max()) + 1))
    other = torch.where(places, (ids + 1 + size // 3) % size, ids)
    found = {}
    for number, lookup in enumerate(base.look.lookups):
        given = lookup.ids
        shaped = other.t() if pair.is_time_first else other
        if given.numel() == ids.numel() and torch.equal(
            given.reshape(-1), (ids.t() if pair.is_time_first else ids).reshape(-1)
        ):
            found[number] = shaped.reshape(given.shape).contiguous()
    return found


def move_tokens(bench: Bench, base: Base, places: Tensor) -> Moved | None:
    """Change tokens at some places, and compare the scores; None if they cannot be compared."""
    pair = base.pair
    assert pair is not None
    look = bench.forward(base.feed, changed=changed_tokens(base, places), watch_modules=True)
    return compare_scores(pair, look)


def compare_scores(pair: Aligned, look: Look) -> Moved | None:
    """Compare the scores with those of another look; None if they cannot be compared."""
    other = aligned_like(look, pair)
    if other is None:
        return None
    scale = pair.scores.float().abs().max().clamp_min(1e-30)
    difference = (other.scores.float() - pair.scores.float()).abs()
    difference = torch.nan_to_num(difference, nan=0.0)
    positions = (other.scores != pair.scores).any(-1)
    both_nan = other.scores.isnan() & pair.scores.isnan()
    positions &= ~both_nan.all(-1)
    return Moved(positions, difference.amax(-1) / scale, look)


def aligned_like(look: Look, pair: Aligned) -> Aligned | None:
    """Return the scores of the same loss in another look."""
    for call in look.losses:
        if call.counts is None or call.target.numel() != pair.target.numel():
            continue
        scores = call.scores.movedim(1, -1) if call.scores.dim() > 2 else call.scores
        shape = pair.scores.shape
        if pair.is_time_first:
            scores = scores.reshape(shape[1], shape[0], -1).transpose(0, 1)
        else:
            scores = scores.reshape(shape[0], shape[1], -1)
        return pair._replace(scores=scores)
    return None


class Ahead(NamedTuple):
    """How far scores look ahead."""

    shift: LabelShift
    causality: Influence


def look_ahead(bench: Bench, base: Base) -> Ahead:
    """Change the tokens after two places in turn, and see which scores move."""
    pair = base.pair
    shift = None if pair is None else shift_of(pair.shares)
    possible = shift is not None and base.is_repeatable
    if ranks.any_rank(not possible) or pair is None or shift is None:
        return _without_looking(base, shift)
    offsets = []
    causality = Influence(unknown="No position could be compared.")
    for place in _places(pair, shift):
        index = torch.arange(pair.ids.shape[1], device=pair.ids.device)
        moved = move_tokens(bench, base, index.expand_as(pair.ids) > place)
        if moved is None or not bool(moved.positions.any()):
            continue
        first = int(moved.positions.any(0).long().argmax())
        offsets.append(place + 1 - first)
        # The target of position j is token j + shift: it may depend on the tokens before that.
        targets = torch.arange(pair.target.shape[1], device=pair.ids.device) + shift
        found = _of_later_tokens(bench, base, moved, pair.counts & (targets - 1 <= place), place)
        if causality.unknown or found.num_moved > causality.num_moved:
            causality = found
    measured = _shift_measured(pair, offsets)
    is_next = shift == 1 or (measured.is_causal is True and shift - measured.offset == 1)
    return Ahead(measured, causality if is_next else Influence(unfit=_NOT_NEXT))


def are_in_other_order(bench: Bench, base: Base) -> bool:
    """Return whether changing one row moves just the scores that would be its own if they were
    flattened with rows and positions exchanged: then targets are compared with others' scores.
    """
    pair = base.pair
    possible = pair is not None and base.is_repeatable and min(pair.target.shape) > 1
    if ranks.any_rank(not possible) or pair is None:
        return False
    num_rows, length = pair.target.shape
    row = num_rows // 2
    places = torch.zeros_like(pair.ids, dtype=torch.bool)
    places[row] = True
    moved = move_tokens(bench, base, places)
    if moved is None:
        return False
    if pair.is_time_first:
        exchanged = moved.positions.t().reshape(num_rows, length)
    else:
        exchanged = moved.positions.reshape(length, num_rows).t()
    elsewhere = exchanged.clone()
    elsewhere[row] = False
    is_in_own_row = bool(moved.positions[row].all())
    return bool(exchanged[row].any()) and not bool(elsewhere.any()) and not is_in_own_row


def _of_later_tokens(
    bench: Bench, base: Base, moved: Moved, compared: Tensor, place: int
) -> Influence:
    """Return what the tokens after a place moved before it. Where rows leak into each other, what
    moved may be another row's doing, so the first row is tried alone.
    """
    found = influence_of(base, moved, compared, last=place)
    if not found.num_moved or base.pair is None:
        return found
    later = torch.zeros_like(base.pair.ids, dtype=torch.bool)
    later[0, place + 1 :] = True
    in_row = compared.clone()
    in_row[1:] = False
    alone = move_tokens(bench, base, later)
    if alone is None or not bool(in_row.any()):
        return found
    return influence_of(base, alone, in_row, last=place)


def _without_looking(base: Base, shift: int | None) -> Ahead:
    """Return what is known without changing tokens, and why none were changed."""
    if base.pair is None:
        return Ahead(LabelShift(has_tokens=False), Influence(unfit=NO_TOKENS))
    pair = base.pair
    own, following = pair.shares_in_rows() or (None, None)
    measured = LabelShift(
        has_tokens=True,
        shares=pair.shares,
        of_other_rows=pair.share_of_other_rows(base.more_ids),
        in_own_row=own,
        in_next_row=following,
        num_targets=int(pair.counts.sum()),
    )
    if shift is None:
        return Ahead(measured, Influence(unfit=_NOT_NEXT))
    return Ahead(measured, Influence(unknown=DIFFERS))


def _shift_measured(pair: Aligned, offsets: Sequence[int]) -> LabelShift:
    """Return how targets are shifted, with where scores began to move after each change."""
    is_causal = all(abs(offset) <= _MAX_OFFSET for offset in offsets) if offsets else None
    is_constant = is_causal is True and len(set(offsets)) == 1
    return LabelShift(
        has_tokens=True,
        shares=pair.shares,
        is_causal=is_causal,
        offset=offsets[0] if is_constant else 0,
    )


def _places(pair: Aligned, shift: int) -> list[int]:
    """Return the positions after which tokens are changed: within those that count."""
    counted = pair.counts.any(0).nonzero().flatten().tolist()
    found = []
    for quantile in _QUANTILES:
        place = counted[int(quantile * (len(counted) - 1))] + shift - 1
        if 0 <= place < pair.ids.shape[1] - 1:
            found.append(place)
    return sorted(set(found))


def influence_of(
    base: Base, moved: Moved, compared: Tensor, *, last: int | None = None
) -> Influence:
    """Count what moved among the positions that may not."""
    touched = moved.positions & compared
    name = ""
    kind = ""
    if bool(touched.any()):
        name, kind = first_moved(base, moved.look, compared, last)
    largest = float(moved.largest[compared].max()) if bool(compared.any()) else 0.0
    return Influence(
        num_compared=int(compared.sum()),
        num_moved=int(touched.sum()),
        largest=largest,
        module=name,
        kind=kind,
        is_next_token=True,
    )


def first_moved(base: Base, other: Look, compared: Tensor, last: int | None) -> tuple[str, str]:
    """Return the name and class of the first module whose output moved where it may not, though
    nothing that went in did.
    """
    pair = base.pair
    assert pair is not None
    fallback = ("", "")
    for before, after in zip(base.look.calls, other.calls, strict=False):
        if before.name != after.name:
            break
        moved_out = _has_moved(before.outputs, after.outputs, pair, compared, last)
        if not moved_out:
            continue
        if not _has_moved(before.inputs, after.inputs, pair, compared, last):
            return before.name, before.kind
        fallback = fallback if fallback[0] else (before.name, before.kind)
    return fallback if fallback[0] else ("the loss", "outside of modules")


def _has_moved(
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    pair: Aligned,
    compared: Tensor,
    last: int | None,
) -> bool:
    num_rows = pair.ids.shape[0]
    length = pair.ids.shape[1]
    for old, new in zip(before, after, strict=False):
        if old.shape != new.shape:
            continue
        if old.shape == (num_rows * length, 1):
            old = old.reshape(num_rows, length)
            new = new.reshape(num_rows, length)
        elif old.shape == (length, num_rows) and pair.is_time_first:
            old = old.t()
            new = new.t()
        if old.shape != (num_rows, length):
            continue
        width = min(length, compared.shape[1])
        where = compared[:, :width]
        if last is not None:  # nothing before the change may move in a module, counted or not
            where = where & (torch.arange(width, device=where.device) <= last)
        if bool(((old != new)[:, :width] & where).any()):
            return True
    return False


def rows(bench: Bench, base: Base, *, is_next_token: bool) -> Influence:
    """Give the first row the content of the second, and compare the others."""
    is_time_first = base.pair is not None and base.pair.is_time_first
    dim = 1 if is_time_first else 0
    count = base.feed.num_rows
    if base.pair is not None:
        count = len(base.pair.ids)
    if ranks.any_rank(count < 3):
        return Influence(unfit="The first batch has fewer than three rows.")
    if ranks.any_rank(not base.is_repeatable):
        return Influence(unknown=DIFFERS)
    tensors = []
    num_changed = 0
    for tensor in base.feed.tensors:
        copied = tensor.clone()
        if copied.dim() > dim and copied.shape[dim] == count:
            copied.select(dim, 0).copy_(copied.select(dim, 1).clone())
            num_changed += int(not torch.equal(copied, tensor))
        tensors.append(copied)
    if ranks.any_rank(not num_changed):
        return Influence(unfit="The first two rows are equal.")
    look = bench.forward(base.feed, tensors=tensors, watch_modules=True)
    compared = RowsCompared(count, dim)
    moved, largest = compared.moved(base.look, look)
    if moved is None:
        return Influence(unknown="No module has an output with one entry for each row.")
    others = torch.ones(count, dtype=torch.bool, device=moved.device)
    others[0] = False
    touched = moved & others
    name = ""
    kind = ""
    if bool(touched.any()):
        name, kind = compared.first_moved(base.look, look, others)
    return Influence(
        num_compared=count - 1,
        num_moved=int(touched.sum()),
        largest=largest,
        module=name,
        kind=kind,
        is_next_token=is_next_token,
        are_rows_known=_has_row_targets(base, count),
    )


def _has_row_targets(base: Base, count: int) -> bool:
    """Return whether the loss shows which dimension the rows are in."""
    if base.pair is not None:
        return True
    for call in base.look.losses:
        if call.target.dim() and len(call.target) == count and call.scores.dim() <= 2:
            return True
    return False


class RowsCompared(NamedTuple):
    """Compares the rows of two forward passes."""

    num_rows: int
    dim: int
    """The dimension of the rows."""

    def moved(self, before: Look, after: Look) -> tuple[Tensor | None, float]:
        """Return which rows moved in the output of any module, and by how much."""
        found: Tensor | None = None
        largest = 0.0
        for old_call, new_call in zip(before.calls, after.calls, strict=False):
            for old, new in zip(old_call.outputs, new_call.outputs, strict=False):
                pair = self._by_rows(old, new)
                if pair is None:
                    continue
                moved = (pair[0] != pair[1]).any(1)
                found = moved if found is None else found | moved
                rest = (pair[0] - pair[1])[1:].abs()
                scale = float(pair[0].abs().max().clamp_min(1e-30))
                largest = max(largest, float(rest.max()) / scale if rest.numel() else 0.0)
        return found, largest

    def first_moved(
        self, before: Look, after: Look, rows: Tensor, kept: Tensor | None = None
    ) -> tuple[str, str]:
        """Return the name and class of the first module that moved some rows, though they went in
        as before. Where an output has positions, only those of `kept` are looked at.
        """
        fallback = ("", "")
        for old, new in zip(before.calls, after.calls, strict=False):
            if not self._moves(old.outputs, new.outputs, rows, kept):
                continue
            if not self._moves(old.inputs, new.inputs, rows, kept):
                return old.name, old.kind
            fallback = fallback if fallback[0] else (old.name, old.kind)
        return fallback if fallback[0] else ("the loss", "outside of modules")

    def _moves(
        self,
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        rows: Tensor,
        kept: Tensor | None,
    ) -> bool:
        for old, new in zip(before, after, strict=False):
            pair = self._by_rows(old, new)
            if pair is None:
                continue
            moved = pair[0] != pair[1]
            if kept is not None and moved.shape == kept.shape:
                moved = moved & kept.to(moved.device)
            if bool((moved.any(1) & rows.to(moved.device)).any()):
                return True
        return False

    def _by_rows(self, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the marks of two outputs by row; None if they have no rows."""
        if old.shape != new.shape:
            return None
        if self.dim == 1:
            return (old.t(), new.t()) if old.shape[1] == self.num_rows else None
        if old.shape[0] == self.num_rows:
            return old, new
        if old.shape[1] == 1 and old.shape[0] % self.num_rows == 0:
            return old.reshape(self.num_rows, -1), new.reshape(self.num_rows, -1)
        return None
