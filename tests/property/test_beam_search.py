"""Beam search equals a naive one for any scorer, brute force when nothing is pruned, and greedy
search at beam 1.
"""

import math
import zlib
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from sonde.generate.search import beam_search, greedy
from sonde.generate.sequence_model import Frontier
from sonde.generate.settings import SearchSettings

EOS = 2
PAD = 1
UNK = 3


@dataclass(frozen=True)
class Scorer:
    """A model without structure: logits drawn from a hash of sentence and prefix, some of them
    -inf.
    """

    seed: int
    vocab_size: int
    share_impossible: float = 0.1

    def row(self, sentence: int, prefix: tuple[int, ...]) -> Tensor:
        seed = zlib.crc32(repr((self.seed, sentence, prefix)).encode())
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(self.vocab_size, generator=generator)
        impossible = torch.rand(self.vocab_size, generator=generator) < self.share_impossible
        return logits.masked_fill(impossible, -torch.inf)

    def __call__(self, frontier: Frontier) -> Tensor:
        rows = [
            torch.stack([self.row(sentence, tuple(prefix)) for prefix in prefixes])
            for sentence, prefixes in zip(
                frontier.sentences.tolist(), frontier.tokens.tolist(), strict=True
            )
        ]
        return torch.stack(rows)


@dataclass(frozen=True)
class Open:
    total: float
    tokens: tuple[int, ...]


def allowed_log_probs(
    scorer: Scorer, sentence: int, tokens: tuple[int, ...], chosen: SearchSettings
) -> list[float]:
    """The next log-probabilities after the rules, written as plainly as they are said."""
    log_probs: list[float] = torch.log_softmax(scorer.row(sentence, (EOS, *tokens)), -1).tolist()
    step = len(tokens)
    history = (EOS, *tokens)
    size = chosen.no_repeat_ngram
    seen = {history[i : i + size] for i in range(len(history) - size + 1)} if size else set()
    for token in range(len(log_probs)):
        if math.isnan(log_probs[token]):
            log_probs[token] = -math.inf
        if token == UNK:
            log_probs[token] -= chosen.unk_penalty
        repeats = size > 0 and (*history[len(history) - size + 1 :], token) in seen and token != EOS
        banned = token in chosen.banned or (token == PAD and chosen.stop != "hf")
        if banned or repeats or (token == EOS and step < chosen.min_len):
            log_probs[token] = -math.inf
    if step >= chosen.max_len and chosen.stop != "hf":
        raw: list[float] = torch.log_softmax(scorer.row(sentence, (EOS, *tokens)), -1).tolist()
        end = -math.inf if math.isnan(raw[EOS]) else raw[EOS]
        log_probs = [end if token == EOS else -math.inf for token in range(len(log_probs))]
    return log_probs


def naive_search(
    scorer: Scorer, sentence: int, chosen: SearchSettings
) -> list[tuple[float, tuple[int, ...]]]:
    beam = min(chosen.beam, scorer.vocab_size - 1) if chosen.stop == "fairseq" else chosen.beam
    opened = [Open(0.0, ())]
    ended = list[tuple[float, tuple[int, ...]]]()
    size = chosen.n_best if chosen.stop == "exact" else beam
    while True:
        length = len(opened[0].tokens) + 1
        candidates = [
            Open(hypothesis.total + log_prob, (*hypothesis.tokens, token))
            for hypothesis in opened
            for token, log_prob in enumerate(
                allowed_log_probs(scorer, sentence, hypothesis.tokens, chosen)
            )
            if log_prob > -math.inf
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate.total)[: 2 * beam]
        for rank, candidate in enumerate(candidates):
            cut = chosen.stop == "hf" and length == chosen.max_len
            if (
                rank < beam
                and (candidate.tokens[-1] == EOS or cut)
                and (chosen.stop != "fairseq" or len(ended) < size)
            ):
                ended.append((candidate.total / length**chosen.length_penalty, candidate.tokens))
        ended = sorted(ended, reverse=True)[:size]
        opened = [candidate for candidate in candidates if candidate.tokens[-1] != EOS][:beam]
        at_limit = length >= (chosen.max_len if chosen.stop == "hf" else chosen.max_len + 1)
        if at_limit or not opened or naive_is_over(opened[0], ended, size, length, chosen):
            return ended[: chosen.n_best]


def naive_is_over(
    best: Open,
    ended: list[tuple[float, tuple[int, ...]]],
    size: int,
    length: int,
    chosen: SearchSettings,
) -> bool:
    if len(ended) < size:
        return False
    if chosen.stop == "fairseq" or chosen.beam == 1:
        return True
    lengths = [length] if chosen.stop == "hf" else range(length + 1, chosen.max_len + 2)
    return bool(max(best.total / n**chosen.length_penalty for n in lengths) <= ended[-1][0])


@st.composite
def searches(draw: st.DrawFn) -> SearchSettings:
    beam = draw(st.integers(1, 6))
    stop: Any = draw(st.sampled_from(["exact", "fairseq", "hf"]))
    max_len = draw(st.integers(1 if stop == "hf" else 0, 6))
    return SearchSettings(
        beam=beam,
        n_best=draw(st.integers(1, beam)),
        stop=stop,
        max_len=max_len,
        min_len=draw(st.integers(0, max_len)),
        length_penalty=draw(st.sampled_from([-0.5, 0.0, 0.6, 1.0, 3.0])),
        unk_penalty=draw(st.sampled_from([0.0, 1.5])),
        no_repeat_ngram=draw(st.integers(0, 3)),
        banned=draw(st.sampled_from([(), (4,), (0, 5)])),
    )


def check_against_naive(scorer: Scorer, chosen: SearchSettings, num_sentences: int) -> None:
    found = beam_search(scorer, num_sentences, chosen)
    for sentence in range(num_sentences):
        expected = naive_search(scorer, sentence, chosen)
        assert [tuple(hypothesis.tokens) for hypothesis in found[sentence]] == [
            tokens for _, tokens in expected
        ]
        for hypothesis, (score, tokens) in zip(found[sentence], expected, strict=True):
            assert math.isclose(hypothesis.score, score, abs_tol=1e-4)
            assert math.isclose(
                sum(hypothesis.token_scores) / len(tokens) ** chosen.length_penalty,
                score,
                abs_tol=1e-4,
            )
            assert hypothesis.ended == (tokens[-1] == EOS)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    chosen=searches(),
    seed=st.integers(0, 10**6),
    vocab_size=st.integers(6, 9),
    num_sentences=st.integers(1, 4),
)
def test_batched_search_equals_a_naive_one(
    chosen: SearchSettings, seed: int, vocab_size: int, num_sentences: int
) -> None:
    check_against_naive(Scorer(seed, vocab_size), chosen, num_sentences)


@settings(max_examples=10, deadline=None)
@given(chosen=searches(), seed=st.integers(0, 10**6), extra=st.integers(0, 70))
def test_a_large_vocabulary_is_searched_as_exactly_as_a_small_one(
    chosen: SearchSettings, seed: int, extra: int
) -> None:
    check_against_naive(Scorer(seed, 1024 + extra), replace(chosen, max_len=2, min_len=0), 2)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    max_len=st.integers(0, 3),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]),
    unk_penalty=st.sampled_from([-2.0, 0.0, 1.0]),
)
def test_a_beam_that_holds_every_prefix_equals_brute_force(
    seed: int, max_len: int, length_penalty: float, unk_penalty: float
) -> None:
    vocab_size = 5
    scorer = Scorer(seed, vocab_size)
    chosen = SearchSettings(
        beam=vocab_size ** (max_len + 1),
        n_best=3,
        max_len=max_len,
        length_penalty=length_penalty,
        unk_penalty=unk_penalty,
    )
    everything = []
    words = [token for token in range(vocab_size) if token not in (EOS, PAD)]
    for length in range(max_len + 1):
        for body in product(words, repeat=length):
            total = 0.0
            for step, token in enumerate((*body, EOS)):
                total += allowed_log_probs(scorer, 0, body[:step], chosen)[token]
            if total > -math.inf:
                everything.append((total / (length + 1) ** length_penalty, [*body, EOS]))
    everything.sort(reverse=True)
    found = beam_search(scorer, 1, chosen)[0]
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in everything[:3]]


@settings(max_examples=60, deadline=None)
@given(chosen=searches(), seed=st.integers(0, 10**6))
def test_beam_one_is_greedy(chosen: SearchSettings, seed: int) -> None:
    scorer = Scorer(seed, 8)
    for sentence, found in enumerate(greedy(scorer, 3, chosen)):
        tokens: tuple[int, ...] = ()
        limit = chosen.max_len if chosen.stop == "hf" else chosen.max_len + 1
        while len(tokens) < limit and EOS not in tokens:
            log_probs = allowed_log_probs(scorer, sentence, tokens, chosen)
            if max(log_probs) == -math.inf:
                break
            tokens = (*tokens, log_probs.index(max(log_probs)))
        is_whole = EOS in tokens or (chosen.stop == "hf" and len(tokens) == limit)
        assert [hypothesis.tokens for hypothesis in found] == ([list(tokens)] if is_whole else [])


@settings(max_examples=30, deadline=None)
@given(chosen=searches(), seed=st.integers(0, 10**6), order=st.permutations(range(5)))
def test_a_sentence_does_not_feel_its_neighbours(
    chosen: SearchSettings, seed: int, order: list[int]
) -> None:
    scorer = Scorer(seed, 8)

    def shuffled(frontier: Frontier) -> Tensor:
        return scorer(replace(frontier, sentences=torch.tensor(order)[frontier.sentences]))

    together = beam_search(scorer, 5, chosen)
    reordered = beam_search(shuffled, 5, chosen)
    assert [[hypothesis.tokens for hypothesis in reordered[i]] for i in range(5)] == [
        [o.tokens for o in together[s]] for s in order
    ]
