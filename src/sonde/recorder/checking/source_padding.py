"""Measures whether the padding of a source moves what a decoder says about it.

The batch has no mask here. But the loss leaves out one token, such as `ignore_index=0`, or the
embedding has it as its `padding_idx`, and rows of the source end with that token again and again:
so it is the padding.
"""

import torch

from sonde.forensics.checks.influence import BY_EMBEDDING, BY_LOSS, Influence
from sonde.recorder.checking.bench import Bench
from sonde.recorder.checking.forward_watch import Look, Lookup
from sonde.recorder.checking.influence import Base, RowsCompared, compare_scores
from sonde.recorder.checking.targets import Aligned, trailing


def source_padding(bench: Bench, base: Base) -> Influence | None:
    """Change the tokens in the padding of the source; None if there is none."""
    pair = base.pair
    if pair is None or not base.is_repeatable:
        return None
    left_out = _left_out(base.look)
    for number, lookup in enumerate(base.look.lookups):
        known = BY_LOSS if left_out is not None else BY_EMBEDDING
        token = lookup.padding if left_out is None else left_out
        if token < 0 or number == pair.lookup or not _has_rows_of(pair, lookup):
            continue
        padding = trailing(lookup.ids, token)
        if not bool(padding.any()) or bool(padding.all(1).any()):
            continue
        size = lookup.num_embeddings
        other = torch.where(padding, (lookup.ids + 1 + size // 3) % size, lookup.ids)
        look = bench.forward(base.feed, changed={number: other}, watch_modules=True)
        moved = compare_scores(pair, look)
        if moved is None:
            return None
        rows = padding.any(1)
        compared = pair.counts & rows.unsqueeze(1)
        name, kind = RowsCompared(len(rows), 0).first_moved(base.look, look, rows, ~padding)
        return Influence(
            num_compared=int(compared.sum()),
            num_moved=int((moved.positions & compared).sum()),
            module=name,
            kind=kind,
            padding_known_by=known,
            largest=float(moved.largest[compared].max()) if bool(compared.any()) else 0.0,
        )
    return None


def _left_out(look: Look) -> int | None:
    """Return the token that the loss leaves out; None if it leaves out none."""
    call = look.main_loss()
    return call.ignored if call is not None and call.ignored >= 0 else None


def _has_rows_of(pair: Aligned, lookup: Lookup) -> bool:
    is_of_tokens = lookup.ids.dim() == 2 and not lookup.ids.is_floating_point()
    return is_of_tokens and not pair.is_time_first and len(lookup.ids) == len(pair.ids)
