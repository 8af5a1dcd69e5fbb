"""Samples follow the distribution, the cuts, and a seed of their own."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.sampling import Sampling, draw
from sonde.generate.search import sample
from sonde.generate.sequence_model import Frontier
from sonde.generate.settings import SearchSettings

EOS = 2
PROBABILITIES = torch.tensor([0.05, 0.0, 0.1, 0.05, 0.5, 0.3])


def model(frontier: Frontier) -> Tensor:
    """One word, then the end."""
    first = (
        PROBABILITIES
        if frontier.step == 0
        else torch.nn.functional.one_hot(torch.tensor(EOS), 6).float()
    )
    return first.log().repeat(*frontier.tokens.shape[:2], 1)


def drawn(**options: Any) -> Counter[int]:
    settings = SearchSettings(beam=200, n_best=200, temperature=options.pop("temperature", 1.0))
    found = sample(model, 10, settings, Sampling(**options))
    return Counter(token.tokens[0] for sentence in found for token in sentence)


def test_frequencies_follow_the_distribution() -> None:
    counts = drawn(seed=1)
    assert sum(counts.values()) == 2000
    for token, probability in enumerate(PROBABILITIES.tolist()):
        assert abs(counts[token] / 2000 - probability) < 0.04


def test_top_k_and_top_p_cut_the_tail() -> None:
    assert set(drawn(top_k=2)) == {4, 5}
    assert set(drawn(top_p=0.75)) == {4, 5}
    assert set(drawn(top_p=0.5)) == {4}
    assert set(drawn(top_k=1)) == {4}
    counts = drawn(top_k=2)
    assert abs(counts[4] / 2000 - 0.5 / 0.8) < 0.04


def test_min_p_leaves_what_is_likely_enough_beside_the_most_likely() -> None:
    assert set(drawn(min_p=0.5)) == {4, 5}  # half of 0.5 is 0.25, and 5 has 0.3
    assert set(drawn(min_p=0.7)) == {4}
    assert set(drawn(min_p=1.0)) == {4}
    assert set(drawn(min_p=0.0)) == set(drawn())
    assert set(drawn(min_p=0.5, top_p=0.5)) == {4}


def test_sentences_are_seeded_by_their_numbers_in_the_whole() -> None:
    settings = SearchSettings(beam=20, n_best=20)
    whole = sample(model, 4, settings, Sampling(seed=3))
    part = sample(model, 2, settings, Sampling(seed=3, numbers=(3, 1)))
    assert [[token.tokens for token in sentence] for sentence in part] == [
        [hypothesis.tokens for hypothesis in whole[number]] for number in (3, 1)
    ]


def test_a_low_temperature_sharpens() -> None:
    assert drawn(temperature=0.1)[4] / 2000 > 0.98


def test_a_seed_repeats_itself_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert drawn(seed=3) == drawn(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    settings = SearchSettings(beam=5, n_best=5)
    one, other = (sample(model, 4, settings, Sampling(seed=seed)) for seed in (3, 4))
    assert [[o.tokens for o in s] for s in one] != [[o.tokens for o in s] for s in other]


def test_a_sentence_draws_the_same_in_any_batch() -> None:
    settings = SearchSettings(beam=4, n_best=4)
    few = sample(model, 2, settings)
    many = sample(model, 6, settings)
    assert [[o.tokens for o in s] for s in few] == [[o.tokens for o in s] for s in many[:2]]


def test_scores_are_log_probabilities_before_the_cut() -> None:
    best = sample(model, 1, SearchSettings(beam=1, length_penalty=0.0), Sampling(top_k=1))[0][0]
    assert math.isclose(best.score, math.log(0.5), rel_tol=1e-6)
    assert best.tokens == [4, EOS]
    assert len(best.token_scores) == 2


def test_lengths_hold_and_what_cannot_go_on_is_dropped() -> None:
    def endless(frontier: Frontier) -> Tensor:
        return torch.tensor([0.0, 0, 1e-9, 0, 0.5, 0.5]).log().repeat(*frontier.tokens.shape[:2], 1)

    found = sample(endless, 3, SearchSettings(beam=2, n_best=2, max_len=6))
    assert all(
        len(token.tokens) == 7 and token.tokens[-1] == EOS
        for sentence in found
        for token in sentence
    )
    cut = sample(endless, 1, SearchSettings(beam=1, max_len=6, stop="hf"))[0][0]
    assert (len(cut.tokens), cut.ended) == (6, False)
    assert sample(lambda f: torch.full((*f.tokens.shape[:2], 6), -torch.inf), 2) == [[], []]
    assert sample(endless, 1, SearchSettings(max_len=0, stop="hf"))[0][0].tokens == []


def test_the_ends_of_the_unit_interval_draw_possible_tokens() -> None:
    log_probs = torch.tensor([[0.0, 0.5, 0.5, 0.0]]).log()
    for uniform in (0.0, 0.999999999):
        assert int(draw(log_probs, torch.tensor([uniform], dtype=torch.float64), Sampling())) in (
            1,
            2,
        )


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": -1},
        {"min_p": 1.5},
        {"min_p": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": 2.5},
    ],
)
def test_cuts_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        Sampling(**options)
