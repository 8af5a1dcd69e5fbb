"""Rules on the next token."""

import math
from typing import Any

import torch
from torch import Tensor

from sonde.generate.constraints import Constraints, forbid_repeated_ngrams
from sonde.generate.settings import SearchSettings

EOS = 2
PAD = 1
UNK = 3


def allowed(
    step: int = 0, sentences: list[int] | None = None, tokens: Tensor | None = None, **options: Any
) -> list[Any]:
    """Which tokens of a uniform distribution over six are left for each sentence, and with what
    score.
    """
    given = {
        name: options.pop(name) for name in ("source_lengths", "prefix_tokens") if name in options
    }
    rows = [0] if sentences is None else sentences
    constraints = Constraints(SearchSettings(**options), max(rows) + 1, **given)
    log_probs = torch.zeros(len(rows), 2, 6)
    constraints.apply(
        log_probs, torch.zeros(len(rows), 2, 1) if tokens is None else tokens, step, rows
    )
    assert torch.equal(log_probs[:, 0], log_probs[:, 1])
    return [
        {token: score for token, score in enumerate(row.tolist()) if score > -math.inf}
        for row in log_probs[:, 0]
    ]


def test_padding_and_banned_tokens_are_never_allowed() -> None:
    assert list(allowed(banned=(0, 5))[0]) == [2, 3, 4]
    assert list(allowed(banned=(0, 5), stop="hf")[0]) == [1, 2, 3, 4]
    assert list(allowed(pad=None)[0]) == [0, 1, 2, 3, 4, 5]


def test_the_unknown_word_pays_its_penalty() -> None:
    assert allowed(unk_penalty=1.5)[0][UNK] == -1.5
    assert allowed(unk_penalty=-1.5)[0][UNK] == 1.5
    assert allowed(unk_penalty=1.5, unk=None)[0][UNK] == 0


def test_lengths_bind_each_sentence_by_its_own_source() -> None:
    options: dict[str, Any] = {
        "source_lengths": [0, 4],
        "min_len_ratio": 0.5,
        "max_len": 1,
        "max_len_ratio": 1.0,
    }
    at_zero = allowed(0, [0, 1], **options)
    at_one = allowed(1, [0, 1], **options)
    assert EOS in at_zero[0]
    assert EOS not in at_zero[1]
    assert list(at_one[0]) == [EOS]
    assert EOS not in at_one[1]


def test_the_largest_length_overrides_the_smallest_and_a_ban() -> None:
    assert list(allowed(2, min_len=5, max_len=2, banned=(EOS,))[0]) == [EOS]
    assert list(allowed(2, max_len=2, stop="hf")[0]) == [0, 1, 2, 3, 4, 5]


def test_a_prefix_overrides_bans_and_the_smallest_length_and_goes_before_forced_tokens() -> None:
    options: dict[str, Any] = {
        "prefix_tokens": [[4], []],
        "banned": (4,),
        "min_len": 3,
        "forced": ((0, 5),),
    }
    assert [list(row) for row in allowed(0, [0, 1], **options)] == [[4], [5]]
    assert list(allowed(0, prefix_tokens=[[EOS]], min_len=3)[0]) == [EOS]


def test_a_repeated_ngram_is_forbidden_as_in_fairseqs_test() -> None:
    log_probs = torch.zeros(2, 1, 4)
    forbid_repeated_ngrams(log_probs, torch.tensor([[[2, 2, 2, 2]], [[3, 3, 3, 3]]]), 2, eos=0)
    assert (log_probs == -torch.inf).nonzero().tolist() == [[0, 0, 2], [1, 0, 3]]


def test_ngrams_of_every_size_are_found_and_ending_is_always_allowed() -> None:
    def forbidden(tokens: list[int], size: int) -> list[int]:
        log_probs = torch.zeros(1, 1, 8)
        forbid_repeated_ngrams(log_probs, torch.tensor([[tokens]]), size, eos=EOS)
        return (log_probs[0, 0] == -torch.inf).nonzero().flatten().tolist()

    assert forbidden([4, 5, 6, 4, 5], 3) == [6]
    assert forbidden([4, 5, 6, 4, 5], 2) == [6]
    assert forbidden([4, 5, 6, 7, 5], 3) == []
    assert forbidden([EOS, 4, 5], 1) == [4, 5]
    assert forbidden([4, 5], 3) == []
