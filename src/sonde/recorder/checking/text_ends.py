"""Measures how texts end: whether the token that ends a text is ever a target that counts.

The tokenizer or the model's configuration says which token it is; without either, the rows may.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from torch import nn

from sonde.forensics.checks.end_of_text import EndOfText
from sonde.forensics.checks.label_shift import ALIKE
from sonde.recorder.checking.bench import Feed
from sonde.recorder.checking.targets import Aligned, padding_of, trailing, trailing_padding

_WITH_LONGEST: Final = 1.5
"""The longest text of each batch ends so too, and cannot be told from one that was cut off."""
_MIN_BATCHES: Final = 4
"""In fewer batches, the longest text may end with the padding token by chance."""


def end_of_text(
    decode: Any, model: nn.Module, feeds: Sequence[Feed], pairs: Sequence[Aligned]
) -> EndOfText:
    """Measure how often the end-of-text token is an input, and a target that counts."""
    tokenizer = getattr(decode, "__self__", None)
    token = getattr(tokenizer, "eos_token_id", None)
    if not all(pair.next_share >= ALIKE for pair in pairs):
        return EndOfText(token=None)
    if not isinstance(token, int):
        found = _masked_ends(pairs)
        return found if found.token is not None else _endless_answers(model, pairs)
    num_seen = 0
    num_counted = 0
    for feed, pair in zip(feeds, pairs, strict=True):
        seen = pair.ids[:, 1:] == token
        padding = padding_of(feed, pair.ids)
        if padding is None:
            padding = trailing(pair.ids, token)  # its end may be padding: nothing tells them apart
        seen = seen & ~padding[:, 1:]
        num_seen += int(seen.sum())
        num_counted += int(((pair.target == token) & pair.counts).sum())
    return EndOfText(
        token=token,
        num_seen=num_seen,
        num_counted=num_counted,
        num_answers=_num_answers(pairs),
        is_padding_token=getattr(tokenizer, "pad_token_id", None) == token,
    )


def _endless_answers(model: nn.Module, pairs: Sequence[Aligned]) -> EndOfText:
    """Look for the end that the model's configuration names among answers."""
    token = getattr(getattr(model, "config", None), "eos_token_id", None)
    if not isinstance(token, int) or not _num_answers(pairs):
        return EndOfText(token=None)
    is_anywhere = any(bool((pair.ids == token).any()) for pair in pairs)
    if is_anywhere:
        return EndOfText(token=None)  # it may be padding too: nothing tells them apart
    return EndOfText(token=token, num_answers=_num_answers(pairs), is_of_configuration=True)


def _num_answers(pairs: Sequence[Aligned]) -> int:
    """Return how many rows have a beginning that does not count, as the question before an answer,
    and were not cut off; 0 if all of them end with a token that is nowhere else, an end of their
    own.
    """
    last: list[int] = []
    num_anywhere: Counter[int] = Counter()
    for pair in pairs:
        num_anywhere.update(pair.ids.flatten().tolist())
        width = pair.target.shape[1]
        for target, counts in zip(pair.target, pair.counts, strict=True):
            counted = counts.nonzero().flatten()
            if len(counted) and int(counted[0]) > 0 and int(counted[-1]) < width - 1:
                last.append(int(target[counted[-1]]))
    ends = set(last)
    has_own_end = len(ends) == 1 and num_anywhere[last[0]] <= _WITH_LONGEST * len(last)
    return 0 if has_own_end else len(last)


def _masked_ends(pairs: Sequence[Aligned]) -> EndOfText:
    """Find a padding token that also ends every text, and never counts.

    Batches are padded to their longest text. If that one ends with padding too, and with exactly
    one token of it in every batch, the token is the end of the text.
    """
    token = trailing_padding(pairs)
    widths = {pair.ids.shape[1] for pair in pairs}
    if token is None or len(pairs) < _MIN_BATCHES or len(widths) < 2:
        return EndOfText(token=None)
    if len(_last_tokens(pairs, token)) == 1:
        return EndOfText(token=None)  # texts have an end of their own
    for pair in pairs:
        is_counted = bool(((pair.target == token) & pair.counts).any())
        if is_counted or not _ends_with_one(pair, token):
            return EndOfText(token=None)
    num_rows = sum(len(pair.ids) for pair in pairs)
    return EndOfText(token=token, num_seen=num_rows, is_padding_token=True)


def _ends_with_one(pair: Aligned, token: int) -> bool:
    """Return whether the longest text of a batch is followed by one token of padding. The inputs
    may lack the last token; then its target does not count.
    """
    num_padding = trailing(pair.ids, token).sum(1)
    shortest = int(num_padding.argmin())
    if int(num_padding[shortest]) == 1:
        return True
    has_last = pair.target.shape[1] < pair.ids.shape[1]
    return int(num_padding[shortest]) == 0 and not has_last and not bool(pair.counts[shortest, -1])


def _last_tokens(pairs: Sequence[Aligned], padding: int) -> set[int]:
    """Return the tokens that stand before the padding of rows."""
    found: set[int] = set()
    for pair in pairs:
        num_padding = trailing(pair.ids, padding).sum(1)
        is_padded = (num_padding > 0) & (num_padding < pair.ids.shape[1])
        places = pair.ids.shape[1] - 1 - num_padding
        found |= set(pair.ids[is_padded].gather(1, places[is_padded, None]).flatten().tolist())
    return found
