"""Measures the order in which rows come: by class, by length, or the same again and again."""

from collections.abc import Sequence

import torch

from sonde.forensics.checks.data_order import LabelOrder, RowOrder
from sonde.recorder.checking.bench import Feed
from sonde.recorder.checking.forward_watch import Look
from sonde.recorder.checking.targets import padding_of


def is_contrastive(look: Look) -> bool:
    """Return whether each row is its own class, as in a contrastive loss."""
    call = look.main_loss()
    if call is None or call.target.dim() != 1:
        return False
    numbers = torch.arange(len(call.target), device=call.target.device)
    return torch.equal(call.target, numbers)


def label_order(looks: Sequence[Look], rows_of: Sequence[int]) -> LabelOrder:
    """Measure the classes of the first batches, or the numbers that are to be predicted."""
    if all(look.main_loss() is None for look in looks):
        return _number_order(looks, rows_of)
    found: list[list[int]] = []
    num_classes = 0
    for look, num_rows in zip(looks, rows_of, strict=True):
        call = look.main_loss()
        if call is None or call.target.dim() != 1 or call.target.numel() != num_rows:
            return LabelOrder(is_classification=False)
        if is_contrastive(look):
            return LabelOrder(is_classification=False)
        found.append(call.target.tolist())
        num_classes = call.scores.shape[-1]
    together = [label for labels in found for label in labels]
    rising = sorted(together)
    return LabelOrder(
        is_classification=True,
        num_classes=num_classes,
        classes_of_batches=tuple(len(set(labels)) for labels in found),
        num_rows=len(together),
        num_seen=len(set(together)),
        is_sorted=together in (rising, rising[::-1]),
    )


def _number_order(looks: Sequence[Look], rows_of: Sequence[int]) -> LabelOrder:
    """Measure the numbers that the rows of the first batches have as targets."""
    together: list[float] = []
    for look, num_rows in zip(looks, rows_of, strict=True):
        targets = [call.target for call in look.losses if call.target.numel() == num_rows]
        if len(targets) != 1:
            return LabelOrder(is_classification=False)
        together += targets[0].reshape(-1).tolist()
    rising = sorted(together)
    return LabelOrder(
        is_classification=False,
        num_rows=len(together),
        num_values=len(set(together)),
        is_sorted=together in (rising, rising[::-1]),
    )


def row_order(
    feeds: Sequence[Feed],
    looks: Sequence[Look],
    names: Sequence[Sequence[int]],
    numbers: Sequence[int],
) -> RowOrder:
    """Measure the lengths of the rows of tokens, and whether batches come again. `names` are those
    of the rows of each batch, `numbers` those of the rows in their dataset, if it gave any.
    """
    lengths: list[int] = []
    for feed, look in zip(feeds, looks, strict=True):
        lengths += _lengths(feed, look)
    return RowOrder(
        lengths=tuple(lengths),
        num_before_again=_num_before_again(names),
        numbers=tuple(numbers),
        sorted_ids=_sorted_ids(feeds, looks),
    )


def _sorted_ids(feeds: Sequence[Feed], looks: Sequence[Look]) -> tuple[int, ...]:
    """Return the IDs of the first embedding that looks up one for each row, in the order in which
    rows come, if they only rise or only fall.
    """
    of_lookups: dict[int, list[int]] = {}
    for feed, look in zip(feeds, looks, strict=True):
        for place, lookup in enumerate(look.lookups):
            if lookup.ids.dim() == 1 and len(lookup.ids) == feed.num_rows:
                of_lookups.setdefault(place, []).extend(lookup.ids.tolist())
    for ids in of_lookups.values():
        rising = sorted(ids)
        if len(set(ids)) > 1 and ids in (rising, rising[::-1]):
            return tuple(ids)
    return ()


def _lengths(feed: Feed, look: Look) -> list[int]:
    """Return how many tokens each row has without its padding."""
    for lookup in look.lookups:
        ids = lookup.ids
        if ids.dim() != 2 or ids.is_floating_point() or len(ids) != feed.num_rows:
            continue
        padding = padding_of(feed, ids)
        if padding is None:
            return [ids.shape[1]] * len(ids)
        return [int(length) for length in (~padding).sum(1)]
    return []


def _num_before_again(names: Sequence[Sequence[int]]) -> int:
    """Return after how many batches the same ones come again in the same order; 0 if they do
    not.
    """
    if all(list(rows) == list(names[0]) for rows in names):
        return 0  # one batch again and again: `repeated_rows` says so
    for period in range(2, len(names) // 2 + 1):
        later = names[period:]
        if all(list(rows) == list(names[at]) for at, rows in enumerate(later)):
            return period
    return 0
