"""Measures whether the content of padding moves predictions.

A mask of the batch says what padding is. Without one, the embedding may say it by its
`padding_idx`, or the loss by leaving out just the token that fills one end of the rows. What is
changed are the vectors that the model looks up, so a mask that it makes of the tokens itself holds.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from sonde import ranks
from sonde.forensics.checks.influence import BY_EMBEDDING, BY_LOSS, Influence
from sonde.recorder.checking.bench import Bench
from sonde.recorder.checking.forward_watch import Lookup
from sonde.recorder.checking.influence import (
    DIFFERS,
    Base,
    RowsCompared,
    influence_of,
    move_tokens,
)
from sonde.recorder.checking.targets import Aligned, padding_of, trailing

_NO_MASK: Final = "Nothing says what padding is: the batch has no mask of it."


def padding(bench: Bench, base: Base, unknown: str) -> Influence:
    """Change the padding of tokens that have targets; every rank must have such tokens. `unknown`
    says why it would tell nothing; empty if it would.
    """
    pair = base.pair
    assert pair is not None
    mask = padding_of(base.feed, pair.ids)
    known = ""
    if mask is None:
        mask, known = _padding_without_mask(pair, base.look.lookups[pair.lookup])
    if ranks.any_rank(mask is None) or mask is None:
        return Influence(unfit=_NO_MASK)
    if unknown or not base.is_repeatable:
        return Influence(unknown=unknown or DIFFERS)
    moved = move_tokens(bench, base, mask)
    if moved is None:
        return Influence(unknown="The scores could not be compared.")
    index = min(pair.counts.shape[1], mask.shape[1])
    compared = pair.counts.clone()
    compared[:, :index] &= ~mask[:, :index]
    compared &= mask.any(1, keepdim=True)
    return replace(influence_of(base, moved, compared), padding_known_by=known)


def row_padding(bench: Bench, base: Base, unknown: str) -> Influence:
    """Change the padding of tokens where each row has one target."""
    call = base.look.main_loss()
    number = _row_tokens(base)
    lookup = None if number is None else base.look.lookups[number]
    mask = None
    known = ""
    if lookup is not None:
        mask = padding_of(base.feed, lookup.ids)
        if mask is None:
            mask = ends_of_rows(lookup.ids, lookup.padding)
            known = BY_EMBEDDING
    possible = mask is not None and call is not None and base.is_repeatable
    if ranks.any_rank(not possible) or lookup is None or call is None or mask is None:
        return Influence(unfit=_NO_MASK)
    if unknown:
        return Influence(unknown=unknown)
    assert number is not None
    size = lookup.num_embeddings
    other = torch.where(mask, (lookup.ids + 1 + size // 3) % size, lookup.ids)
    look = bench.forward(base.feed, changed={number: other}, watch_modules=True)
    again = look.main_loss()
    if again is None or again.scores.shape != call.scores.shape:
        return Influence(unknown="The scores could not be compared.")
    rows = mask.any(1)
    difference = (again.scores - call.scores).float().abs().reshape(len(rows), -1).amax(1)
    moved = (difference > 0) & rows
    scale = float(call.scores.float().abs().max().clamp_min(1e-30))
    kept = ~mask & rows.unsqueeze(1)
    name, kind = RowsCompared(len(rows), 0).first_moved(base.look, look, rows, kept)
    return Influence(
        num_compared=int(rows.sum()),
        num_moved=int(moved.sum()),
        largest=float(difference.max()) / scale,
        module=name,
        kind=kind,
        padding_known_by=known,
    )


def _row_tokens(base: Base) -> int | None:
    """Return the number of the first lookup of tokens that have one row for each target."""
    call = base.look.main_loss()
    if call is None:
        return None
    for number, lookup in enumerate(base.look.lookups):
        if lookup.ids.dim() == 2 and len(lookup.ids) == call.target.numel():
            return number
    return None


def _padding_without_mask(pair: Aligned, lookup: Lookup) -> tuple[Tensor | None, str]:
    """Return where tokens are padding although the batch has no mask, and what says so."""
    of_embedding = ends_of_rows(pair.ids, lookup.padding)
    if of_embedding is not None:
        return of_embedding, BY_EMBEDDING
    for token in sorted({*pair.ids[:, 0].tolist(), *pair.ids[:, -1].tolist()}):
        found = ends_of_rows(pair.ids, token)
        if found is not None and _is_left_out(pair, found):
            return found, BY_LOSS
    return None, ""


def ends_of_rows(ids: Tensor, token: int) -> Tensor | None:
    """Return where rows begin or end with a token again and again; None unless they do so in
    different lengths, and the token is nowhere else.
    """
    is_token = ids == token
    at_end = trailing(ids, token)
    at_beginning = trailing(ids.flip(1), token).flip(1)
    for found in (at_end, at_beginning):
        lengths = found.sum(1)
        is_padding = torch.equal(found, is_token) and int(lengths.max()) > 1
        if is_padding and len(lengths.unique()) > 1 and int(lengths.max()) < ids.shape[1]:
            return found
    return None


def _is_left_out(pair: Aligned, padding: Tensor) -> bool:
    """Return whether the loss leaves out just the targets that are padding."""
    width = min(pair.counts.shape[1], padding.shape[1] - 1)
    is_asked = padding[:, 1 : width + 1]
    counts = pair.counts[:, :width]
    return bool(is_asked.any()) and not bool((counts & is_asked).any())
