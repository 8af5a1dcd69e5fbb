"""Measures whether documents that are packed into one row influence one another.

Where they begin is read from the batch: position ids that begin again, document ids, lengths,
cumulative lengths, or a block-diagonal mask; otherwise from the tokenizer's end-of-text token.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from sonde import ranks
from sonde.forensics.checks.influence import Influence
from sonde.recorder.checking.bench import Bench
from sonde.recorder.checking.influence import DIFFERS, Base, influence_of, move_tokens
from sonde.recorder.checking.targets import Aligned, are_positions, padding_of

_BLOCKED: Final = -1e3
"""Below this, a mask of numbers to add blocks attention."""
_UNSAID: Final = "Nothing says where documents begin within a row."


class Documents(NamedTuple):
    """Where documents begin within rows."""

    starts: Tensor
    """Rows by positions: whether a further document begins there."""
    positions: Tensor | None = None
    """The position ids of the batch that say so."""
    has_boundaries: bool = True
    """Whether the batch says it."""


def documents(bench: Bench, base: Base, named: Mapping[str, Tensor]) -> Influence:
    """Change the first document of packed rows, and compare what comes after it. `named` are the
    tensors of the batch by name.
    """
    pair = base.pair
    packed = None if pair is None else _documents(bench, base, pair, named)
    is_fit = pair is not None and pair.next_share > 0.5
    if ranks.any_rank(packed is None or not is_fit) or pair is None or packed is None:
        return Influence(unfit=_UNSAID)
    if not base.is_repeatable:
        return Influence(unknown=DIFFERS)
    document = packed.starts.long().cumsum(1)
    first = document == 0
    moved = move_tokens(bench, base, first)
    if moved is None:
        return Influence(unknown="The scores could not be compared.")
    width = min(pair.counts.shape[1], first.shape[1])
    compared = pair.counts.clone()
    compared[:, :width] &= ~first[:, :width]
    found = influence_of(base, moved, compared)
    goes_on = _looks_up_a_row_of_positions(base, pair)
    return Influence(
        num_compared=found.num_compared,
        num_moved=found.num_moved,
        largest=found.largest,
        module=found.module,
        kind=found.kind,
        has_boundaries=packed.has_boundaries,
        positions_go_on=goes_on,
        ignores_positions=goes_on and _are_ignored(base, packed.positions),
    )


def _documents(
    bench: Bench, base: Base, pair: Aligned, named: Mapping[str, Tensor]
) -> Documents | None:
    said = document_starts(named, pair.ids)
    if said is not None:
        return said
    ends = _ends_of_text(bench.training.decode, base, pair)
    return None if ends is None else Documents(ends, has_boundaries=False)


def _ends_of_text(decode: Any, base: Base, pair: Aligned) -> Tensor | None:
    """Return where a token follows the tokenizer's end-of-text token within a row."""
    token = getattr(getattr(decode, "__self__", None), "eos_token_id", None)
    if not isinstance(token, int):
        return None
    starts = torch.zeros_like(pair.ids, dtype=torch.bool)
    starts[:, 1:] = (pair.ids[:, :-1] == token) & (pair.ids[:, 1:] != token)
    padding = padding_of(base.feed, pair.ids)
    if padding is not None:
        starts &= ~padding
    starts[:, 1] = False  # a row may begin with it
    return starts if bool(starts.any()) else None


def _looks_up_a_row_of_positions(base: Base, pair: Aligned) -> bool:
    """Return whether the model looks up 0, 1, 2, … over the whole row."""
    length = pair.ids.shape[1]
    for lookup in base.look.lookups:
        ids = lookup.ids.reshape(-1, lookup.ids.shape[-1]) if lookup.ids.dim() else lookup.ids
        if ids.dim() == 2 and ids.shape[1] == length and are_positions(ids):
            return True
    return False


def _are_ignored(base: Base, positions: Tensor | None) -> bool:
    """Return whether the model looks up no position ids of the batch."""
    if positions is None:
        return False
    for lookup in base.look.lookups:
        if lookup.ids.shape == positions.shape and torch.equal(lookup.ids, positions):
            return False
    return True


def document_starts(named: Mapping[str, Tensor], ids: Tensor) -> Documents | None:
    """Return where documents begin, as the batch says it; None if it does not."""
    for name, tensor in named.items():
        found = _said_by(name.lower(), tensor.to(ids.device), ids)
        if found is not None:
            return found
    return None


def _said_by(name: str, tensor: Tensor, ids: Tensor) -> Documents | None:
    """Return where documents begin by one tensor of the batch."""
    length = ids.shape[1]
    if tensor.dim() > 2 and tensor.shape[-2:] == (length, length) and len(tensor) == len(ids):
        return _by_mask(tensor.reshape(len(ids), -1, length, length)[:, 0])
    if tensor.is_floating_point() or tensor.dtype is torch.bool:
        return None
    if tensor.shape == (len(ids), length + 1):
        tensor = tensor[:, :length]  # the last token is a target only
    if tensor.shape == ids.shape:
        return _by_position(name, tensor)
    return _by_lengths(name, tensor, ids) if tensor.dim() == 1 and len(ids) == 1 else None


def _by_lengths(name: str, tensor: Tensor, ids: Tensor) -> Documents | None:
    """Return where documents begin by their lengths, cumulative or not, in a batch of one row."""
    length = ids.shape[1]
    if "cu_seq" in name:
        inner = tensor[1:-1].long()
    elif "len" in name and int(tensor.sum()) == length:
        inner = tensor.long().cumsum(0)[:-1]
    else:
        return None
    is_rising = bool((inner.diff() > 0).all())
    if not len(inner) or not is_rising or int(inner[0]) < 1 or int(inner[-1]) >= length:
        return None
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[0, inner] = True
    return Documents(starts)


def _by_mask(mask: Tensor) -> Documents | None:
    """Return where a position may see itself and not the one before it, in a causal mask."""
    sees = _what_is_seen(mask)
    if bool(sees.triu(1).any()):
        return None  # a position sees a later one: this is no causal mask
    itself = sees.diagonal(dim1=1, dim2=2)
    before = sees.diagonal(offset=-1, dim1=1, dim2=2)
    starts = torch.zeros_like(itself)
    # A position that does not see itself is padding: what follows it begins no further document.
    starts[:, 1:] = itself[:, 1:] & ~before & itself[:, :-1]
    return Documents(starts) if bool(starts.any()) else None


def _what_is_seen(mask: Tensor) -> Tensor:
    """Return what each position may see: where a mask is true, is above 0, or does not block."""
    if not mask.is_floating_point():
        return mask.bool()
    is_0_or_1 = float(mask.min()) >= 0
    return mask > 0 if is_0_or_1 else mask > _BLOCKED


def _by_position(name: str, tensor: Tensor) -> Documents | None:
    steps = tensor.diff(dim=1)
    inside = torch.zeros_like(tensor, dtype=torch.bool)
    counts_up = (steps == 1) | (tensor[:, 1:] == 0)
    if bool((tensor[:, 0] == 0).all()) and bool(counts_up.all()):
        inside[:, 1:] = (tensor[:, 1:] == 0) & (tensor[:, :-1] > 0)
        return Documents(inside, positions=tensor) if bool(inside.any()) else None
    is_named = any(word in name for word in ("doc", "segment", "seq_id", "seqid"))
    is_stepwise = bool(((steps == 0) | (steps == 1)).all()) and bool((steps == 1).any())
    if is_named and is_stepwise and "type" not in name:
        inside[:, 1:] = steps == 1
        return Documents(inside)
    return None
