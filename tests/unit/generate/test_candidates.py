"""The best continuations, and log-probabilities for any logits."""

import pytest
import torch

from sonde.generate.search import best_candidates, log_probabilities


@pytest.mark.parametrize("vocab_size", [7, 3000])
@pytest.mark.parametrize("num", [1, 10, 40])
def test_candidates_are_those_of_sorting_everything(vocab_size: int, num: int) -> None:
    torch.manual_seed(vocab_size + num)
    log_probs = torch.randn(3, 4, vocab_size, dtype=torch.float64)
    log_probs[torch.rand_like(log_probs) < 0.3] = -torch.inf
    scores = torch.tensor([[0.0, -1.0, -torch.inf, -0.5]] * 3, dtype=torch.float64)
    found = best_candidates(log_probs, scores, num)
    everything = (log_probs + scores[:, :, None]).flatten(1)
    expected = everything.sort(descending=True).values[:, :num]
    found_scores = found.scores[:, : expected.shape[1]]
    torch.testing.assert_close(found_scores, expected, atol=0, rtol=0)
    at_places = everything.gather(1, found.parents * vocab_size + found.tokens)[
        :, : expected.shape[1]
    ]
    torch.testing.assert_close(at_places, found_scores, atol=0, rtol=0)
    assert found.scores.shape == (3, num)


def test_missing_candidates_score_minus_infinity() -> None:
    found = best_candidates(torch.zeros(1, 1, 3), torch.zeros(1, 1), 5)
    assert found.scores.tolist() == [[0, 0, 0, -torch.inf, -torch.inf]]
    assert sorted(found.tokens[0, :3].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("place", [0, 3, 17, 4099])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_logit_is_contained_wherever_it_stands(place: int, bad: float) -> None:
    logits = torch.randn(2, 3, 4100)
    logits[1, 2, place] = bad
    log_probs = log_probabilities(logits)
    others = torch.ones(2, 3, dtype=torch.bool)
    others[1, 2] = False
    torch.testing.assert_close(log_probs[others], torch.log_softmax(logits[others], -1))
    assert not log_probs.isnan().any()
    assert log_probs[1, 2, place] == (0.0 if bad == torch.inf else -torch.inf)
    torch.testing.assert_close(log_probs[1, 2].exp().sum(), torch.tensor(1.0))


def test_half_precision_logits_are_normalised_in_float32() -> None:
    log_probs = log_probabilities(torch.randn(1, 1, 5000).bfloat16())
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(), torch.tensor(1.0))


def test_the_given_logits_are_left_alone() -> None:
    logits = torch.randn(1, 1, 50)
    logits[0, 0, 3] = torch.nan
    before = logits.clone()
    log_probabilities(logits)
    torch.testing.assert_close(logits, before, equal_nan=True)
