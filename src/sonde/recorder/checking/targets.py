"""Measures what the loss is given: its size at the start, the positions that count, padding and
ends of texts among them, and how targets lie against the inputs.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sonde.forensics.checks.counted_positions import CountedPositions, PaddingInLoss
from sonde.forensics.checks.label_shift import ALIKE
from sonde.forensics.checks.loss_inputs import DIFFERENCE, LossInputs
from sonde.forensics.checks.start_loss import StartLoss
from sonde.recorder.checking.bench import Feed
from sonde.recorder.checking.forward_watch import Look, LossCall

_NAMES_OF_MASKS: Final = re.compile(
    "(answer|completion|response|assistant|target|label|loss|output)s?_?(tokens?_?)?masks?"
)
"""What people call a mask of the positions that are to count."""
SHIFTS: Final = range(-16, 17)
_MIN_COMPARED: Final = 8
_MOST_BY_CHANCE: Final = 0.5
_MAX_LONGER: Final = 16
"""By how many positions the targets of a row may be fewer or more than its tokens."""
_MIN_RUN: Final = 4
_MIN_ROWS: Final = 4
_MOST_INSIDE: Final = 0.02


class Aligned(NamedTuple):
    """Tokens that a model looked up, and the targets of the loss, in the same rows."""

    lookup: int
    """The number of the lookup."""
    ids: Tensor
    """Rows by positions."""
    num_embeddings: int
    target: Tensor
    counts: Tensor
    scores: Tensor
    """Rows by positions by classes."""
    shares: tuple[tuple[int, float], ...]
    """For each shift: the share of targets at t that are the input at t + shift."""
    is_time_first: bool
    """Whether the script has positions in the first dimension, and rows in the second."""

    def share_of_other_rows(self, more: Sequence[Tensor] = ()) -> float:
        """The share of rows whose targets are the next tokens of another row, of this batch or of
        others; `more` are the tokens of those.
        """
        width = min(self.target.shape[1], self.ids.shape[1] - 1)
        if width < _MIN_COMPARED or self.next_share > _MOST_BY_CHANCE:
            return 0.0
        as_wide = [ids for ids in more if ids.shape[1] == self.ids.shape[1]]
        following = torch.cat([self.ids, *as_wide])[:, 1 : width + 1]
        num_found = 0
        for row, kept in zip(self.target[:, :width], self.counts[:, :width], strict=True):
            num_kept = int(kept.sum())
            same = ((following == row) & kept).sum(1)
            num_found += int(num_kept >= _MIN_COMPARED and int(same.max()) >= ALIKE * num_kept)
        return num_found / len(self.ids)

    def shares_in_rows(self) -> tuple[float, float] | None:
        """The shares of targets that are among the tokens of their own row, and of the next; None
        if targets are no tokens of the same vocabulary, or most positions have none.
        """
        num_counted = int(self.counts.sum())
        is_same_vocabulary = self.scores.shape[-1] == self.num_embeddings
        num_rows = len(self.ids)
        if not is_same_vocabulary or 2 * num_counted < self.counts.numel() or num_rows < 2:
            return None
        num_own = 0
        num_next = 0
        for row, (target, kept) in enumerate(zip(self.target, self.counts, strict=True)):
            asked = target[kept]
            num_own += int(torch.isin(asked, self.ids[row]).sum())
            num_next += int(torch.isin(asked, self.ids[(row + 1) % num_rows]).sum())
        return num_own / num_counted, num_next / num_counted

    @property
    def next_share(self) -> float:
        """The share of targets that are the next token."""
        return dict(self.shares).get(1, 0.0)

    @property
    def best_share(self) -> float:
        """The largest share."""
        return max((share for _, share in self.shares), default=0.0)


def aligned(look: Look) -> Aligned | None:
    """Return the tokens and targets that fit best; None if there are none."""
    return max(_all_aligned(look), key=_fit, default=None)


def in_other_layout(look: Look, pair: Aligned | None) -> Aligned | None:
    """Return the same tokens with rows and positions exchanged, if targets fit them as well. They
    do if each target is the input at its own place.
    """
    for other in [] if pair is None else _all_aligned(look):
        assert pair is not None
        is_same = other.lookup == pair.lookup and other.target.numel() == pair.target.numel()
        is_as_good = other.best_share >= max(ALIKE, pair.best_share)
        if is_same and is_as_good and other.is_time_first != pair.is_time_first:
            return other
    return None


def _all_aligned(look: Look) -> list[Aligned]:
    """Return all pairs of tokens and targets that may belong together."""
    found: list[Aligned] = []
    for call in look.losses:
        if call.counts is None:
            continue
        for number, lookup in enumerate(look.lookups):
            ids = lookup.ids
            if ids.dim() == 1:
                ids = ids.unsqueeze(0)
            if ids.dim() != 2 or ids.is_floating_point() or are_positions(ids):
                continue
            for is_time_first in (False, True):
                pair = _pair(number, ids, lookup.num_embeddings, call, is_time_first)
                # Rows are in the first dimension unless the tokens themselves say otherwise.
                if pair is not None and (not is_time_first or pair.best_share >= ALIKE):
                    found.append(pair)
    return found


def _fit(pair: Aligned) -> tuple[bool, float, bool]:
    """Return how well tokens and targets fit: the next token first, then any other."""
    return pair.next_share >= ALIKE, pair.best_share, not pair.is_time_first


def are_positions(ids: Tensor) -> bool:
    """Return whether ids are just 0, 1, 2, …"""
    count = torch.arange(ids.shape[1], device=ids.device)
    return bool((ids == count).all()) and ids.shape[1] > 2


def _pair(
    number: int, ids: Tensor, num_embeddings: int, call: LossCall, is_time_first: bool
) -> Aligned | None:
    assert call.counts is not None
    num_rows = ids.shape[1] if is_time_first else ids.shape[0]
    total = call.target.numel()
    if num_rows < 1 or total % num_rows:
        return None
    length = total // num_rows
    num_tokens = ids.numel() // num_rows
    if length < 2 or abs(length - num_tokens) > _MAX_LONGER:
        return None
    scores = call.scores
    if scores.dim() > 2:  # classes in the second dimension
        scores = scores.movedim(1, -1).reshape(total, -1)
    if scores.shape[0] != total:
        return None
    shape = (length, num_rows) if is_time_first else (num_rows, length)
    target = call.target.reshape(shape)
    counts = call.counts.reshape(shape)
    scores = scores.reshape(*shape, -1)
    if is_time_first:
        ids = ids.t()
        target = target.t()
        counts = counts.t()
        scores = scores.transpose(0, 1)
    shares = _shares(ids, target, counts)
    return Aligned(
        number, ids, num_embeddings, target, counts, scores, shares, is_time_first=is_time_first
    )


def _shares(ids: Tensor, target: Tensor, counts: Tensor) -> tuple[tuple[int, float], ...]:
    found = []
    for shift in SHIFTS:
        begin = max(0, -shift)
        end = min(target.shape[1], ids.shape[1] - shift)
        if end - begin < 1:
            continue
        kept = counts[:, begin:end]
        compared = int(kept.sum())
        if compared < _MIN_COMPARED:
            continue
        same = (target[:, begin:end] == ids[:, begin + shift : end + shift]) & kept
        found.append((shift, int(same.sum()) / compared))
    return tuple(found)


def start_loss(looks: Sequence[Look]) -> StartLoss:
    """Measure the plain cross-entropy of the first batch, and the entropy of the labels."""
    call = looks[0].main_loss()
    if call is None:
        return _start_of_regression(looks)
    if call.counts is None or not bool(call.counts.any()):
        return StartLoss(loss=None)
    scores = call.scores.movedim(1, -1) if call.scores.dim() > 2 else call.scores
    num_classes = scores.shape[-1]
    kept = call.counts.reshape(-1)
    chosen = scores.reshape(-1, num_classes)[kept].float()
    labels = call.target.reshape(-1)[kept]
    function = F.nll_loss if call.function == "nll_loss" else F.cross_entropy
    loss = float(function(chosen, labels))
    counted = torch.bincount(labels, minlength=2).float()
    shares = counted[counted > 0] / counted.sum()
    entropy = float(-(shares * shares.log()).sum())
    return StartLoss(loss=loss, num_classes=num_classes, label_entropy=entropy)


def _start_of_regression(looks: Sequence[Look]) -> StartLoss:
    """Measure the squared error of the first batch, and the variance of all targets."""
    calls = []
    for look in looks:
        found = [call for call in look.losses if call.function == "mse_loss"]
        if len(found) != 1:
            return StartLoss(loss=None)
        calls.append(found[0])
    targets = torch.cat([call.target.reshape(-1).double() for call in calls])
    variance = float(targets.var(correction=0))
    return StartLoss(loss=None, squared_error=calls[0].mean, variance=variance)


def loss_inputs(look: Look) -> LossInputs:
    """Measure what the loss functions are given: the first that is wrong, otherwise the first."""
    found = []
    for call in look.losses:
        shape = tuple(call.scores.shape)
        target_shape = tuple(call.target.shape)
        is_number = call.counts is None and call.function != "cross_entropy"
        found.append(
            LossInputs(
                function=call.function,
                is_normalised=call.is_normalised,
                lacks_logarithm=call.lacks_logarithm,
                shape=shape,
                target_shape=target_shape,
                broadcasts=is_number and shape != target_shape and _grows(shape, target_shape),
            )
        )
    for measured in found:
        if measured.is_normalised or measured.lacks_logarithm or measured.broadcasts:
            return measured
    if look.stretched is not None:
        shape, target_shape = look.stretched
        return LossInputs(
            function=DIFFERENCE, shape=shape, target_shape=target_shape, broadcasts=True
        )
    return found[0] if found else LossInputs(function=None)


def _grows(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether two shapes are stretched to one that is larger than both."""
    try:
        together = torch.broadcast_shapes(shape, other)
    except RuntimeError:
        return False
    return bool(together.numel() > max(torch.Size(shape).numel(), torch.Size(other).numel()))


def counted_positions(
    looks: Sequence[Look], feeds: Sequence[Feed], pairs: Sequence[Aligned | None]
) -> CountedPositions:
    """Measure the positions that count over some batches; `pairs` are their tokens and targets."""
    num_rows = 0
    num_positions = 0
    num_counted = 0
    num_rows_without = 0
    num_batches_without = 0
    for look, feed in zip(looks, feeds, strict=True):
        rows = feed.num_rows
        call = look.main_loss()
        if call is None or call.counts is None:
            continue
        num_positions += call.counts.numel()
        counted = int(call.counts.sum())
        num_counted += counted
        num_batches_without += int(counted == 0)
        if rows > 0 and call.counts.numel() % rows == 0:
            num_rows += rows
            per_row = call.counts.reshape(rows, -1).sum(1)
            num_rows_without += int((per_row == 0).sum())
    beside = _beside_mask(feeds, pairs)
    return CountedPositions(
        num_rows=num_rows,
        num_positions=num_positions,
        num_counted=num_counted,
        num_rows_without=num_rows_without,
        num_batches=len(looks),
        num_batches_without=num_batches_without,
        mask=beside.mask,
        num_inside=beside.num_inside,
        num_outside=beside.num_outside,
    )


class _BesideMask(NamedTuple):
    """How the positions that count lie against a mask that says by its name what is to count."""

    mask: str
    num_inside: int
    num_outside: int


def _beside_mask(feeds: Sequence[Feed], pairs: Sequence[Aligned | None]) -> _BesideMask:
    name = ""
    num_inside = 0
    num_outside = 0
    for feed, pair in zip(feeds, pairs, strict=True):
        if pair is None or pair.next_share < ALIKE:
            continue
        width = pair.counts.shape[1]
        for key, mask in feed.named_tensors():
            if not _NAMES_OF_MASKS.fullmatch(key) or mask.dim() != 2:
                continue
            of_targets = mask[:, 1 : width + 1].to(pair.counts.device) != 0
            counted = pair.counts[:, : of_targets.shape[1]]
            if counted.shape != of_targets.shape:
                continue
            name = key
            num_inside += int((counted & of_targets).sum())
            num_outside += int((counted & ~of_targets).sum())
    return _BesideMask(name, num_inside, num_outside)


def padding_of(feed: Feed, ids: Tensor) -> Tensor | None:
    """Return where a batch has padding, by a mask in the batch: a tensor of two values, the size of
    the tokens, one of which stands at an end of rows over one and the same token.
    """
    for tensor in feed.tensors:
        mask = tensor
        if mask.dim() == 2 and mask.shape != ids.shape and mask.t().shape == ids.shape:
            mask = mask.t()
        if mask.shape != ids.shape or mask.dtype not in (torch.bool, torch.int64, torch.float32):
            continue
        mask = mask.to(ids.device)
        if not bool(((mask == 0) | (mask == 1)).all()) or torch.equal(mask.long(), ids.long()):
            continue
        for value in (0, 1):
            padding = mask == value
            if _is_padding(padding, ids):
                return padding
    return None


def _is_padding(padding: Tensor, ids: Tensor) -> bool:
    if not bool(padding.any()) or bool(padding.all(1).any()):
        return False
    if len(torch.unique(ids[padding])) != 1:
        return False
    numbers = padding.long()
    at_end = bool((numbers.diff(dim=1) >= 0).all())
    at_begin = bool((numbers.diff(dim=1) <= 0).all())
    return at_end or at_begin


def trailing_padding(pairs: Sequence[Aligned]) -> int | None:
    """Return the token that fills the ends of rows and is almost nowhere else, if there is one."""
    runs: dict[int, list[int]] = {}
    for pair in pairs:
        for row in pair.ids.tolist():
            runs.setdefault(row[-1], []).append(_run_at_end(row))
    for token, lengths in runs.items():
        long = [length for length in lengths if length >= _MIN_RUN]
        if len(long) < _MIN_ROWS or len(set(long)) < 2:
            continue
        everywhere = sum(int((pair.ids == token).sum()) for pair in pairs)
        if everywhere - sum(lengths) <= _MOST_INSIDE * everywhere:
            return token
    return None


def _run_at_end(row: list[int]) -> int:
    """Return how often the last token of a row stands at its end."""
    length = 1
    while length < len(row) and row[-1 - length] == row[-1]:
        length += 1
    return length


def padding_in_loss(feeds: Sequence[Feed], pairs: Sequence[Aligned]) -> PaddingInLoss:
    """Measure how much padding is among the targets that count."""
    masks = [padding_of(feed, pair.ids) for feed, pair in zip(feeds, pairs, strict=True)]
    if any(mask is not None for mask in masks):
        return _padding_by_mask(masks, pairs)
    token = trailing_padding(pairs)
    if token is None:
        return PaddingInLoss(num_padding=0, num_counted=0, num_counted_padding=0)
    num_padding = 0
    num_counted = 0
    num_both = 0
    for pair in pairs:
        num_padding += int((pair.ids == token).sum())
        num_counted += int(pair.counts.sum())
        num_both += int(((pair.target == token) & pair.counts).sum())
    return PaddingInLoss(
        num_padding=num_padding,
        num_counted=num_counted,
        num_counted_padding=num_both,
        padding_token=token,
        is_sure=False,
    )


def _padding_by_mask(masks: Sequence[Tensor | None], pairs: Sequence[Aligned]) -> PaddingInLoss:
    num_padding = 0
    num_counted = 0
    num_both = 0
    token = None
    for mask, pair in zip(masks, pairs, strict=True):
        num_counted += int(pair.counts.sum())
        if mask is None:
            continue
        num_padding += int(mask.sum())
        token = int(pair.ids[mask][0])
        shift = 1 if pair.next_share >= pair.best_share else 0
        end = min(pair.target.shape[1], mask.shape[1] - shift)
        padded = mask[:, shift : end + shift]
        is_token = pair.target[:, :end] == token
        num_both += int((padded & is_token & pair.counts[:, :end]).sum())
    return PaddingInLoss(
        num_padding=num_padding,
        num_counted=num_counted,
        num_counted_padding=num_both,
        padding_token=token,
    )


def trailing(ids: Tensor, token: int) -> Tensor:
    """Return where rows end with a token again and again."""
    is_token = (ids == token).long()
    return is_token.flip(1).cumprod(1).flip(1).bool()
