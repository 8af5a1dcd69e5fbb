"""When a search may stop."""

import math

import pytest

from sonde.generate.hypotheses import Hypothesis, Pool, best_reachable, is_finished
from sonde.generate.settings import SearchSettings


def hypothesis(score: float) -> Hypothesis:
    return Hypothesis(tokens=[4, 2], score=score, token_scores=[score, 0.0])


def full_pool(settings: SearchSettings, *scores: float) -> Pool:
    pool = Pool(settings.n_best if settings.stop == "exact" else settings.beam)
    for score in scores:
        pool.add(hypothesis(score))
    return pool


def test_a_pool_keeps_the_best_and_ranks_them() -> None:
    pool = Pool(2)
    for score in (-3.0, -1.0, -2.0):
        pool.add(hypothesis(score))
    assert [entry.score for entry in pool.ranked] == [-1.0, -2.0]
    assert not pool.would_take(-2.0)
    assert pool.would_take(-1.9)


def test_a_first_come_pool_keeps_the_first() -> None:
    pool = Pool(2, first_come=True)
    for score in (-3.0, -2.0):
        pool.add(hypothesis(score))
    assert [entry.score for entry in pool.ranked] == [-2.0, -3.0]
    assert not pool.would_take(-1.0)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("unk_penalty", [-0.7, 0.0, 0.7])
def test_no_continuation_is_better_than_the_bound(
    length_penalty: float, unk_penalty: float
) -> None:
    settings = SearchSettings(length_penalty=length_penalty, unk_penalty=unk_penalty)
    bound = best_reachable(-2.0, 3, 8, settings)
    for length in range(4, 10):
        for num_unknown in range(length - 3):
            total = -2.0 + num_unknown * max(0.0, -unk_penalty)
            assert total / length**length_penalty <= bound + 1e-12


def test_exact_waits_only_for_those_who_can_still_win() -> None:
    settings = SearchSettings(beam=2, n_best=1, length_penalty=1.0)
    pool = full_pool(settings, -0.5)
    assert not is_finished(pool, -2.0, 3, 9, settings)
    assert is_finished(pool, -5.1, 3, 9, settings)
    assert not is_finished(Pool(2), -5.1, 3, 9, settings)


def test_fairseq_stops_when_the_pool_is_full_and_hf_compares_at_the_present_length() -> None:
    fairseq = SearchSettings(beam=2, stop="fairseq")
    assert not is_finished(full_pool(fairseq, -9.0), -0.1, 3, 9, fairseq)
    assert is_finished(full_pool(fairseq, -9.0, -8.0), -0.1, 3, 9, fairseq)
    hf = SearchSettings(beam=2, stop="hf")
    assert not is_finished(full_pool(hf, -1.0, -0.5), -2.9, 3, 9, hf)
    assert is_finished(full_pool(hf, -1.0, -0.5), -3.1, 3, 9, hf)


@pytest.mark.parametrize(("stop", "limit"), [("exact", 10), ("fairseq", 10), ("hf", 9)])
def test_the_largest_length_and_death_end_everything(stop: str, limit: int) -> None:
    # a literal, from a parameter
    settings = SearchSettings(beam=2, stop=stop)  # type: ignore[arg-type]
    empty = Pool(2)
    assert is_finished(empty, -0.1, limit, 9, settings)
    assert not is_finished(empty, -0.1, limit - 1, 9, settings)
    assert is_finished(empty, -math.inf, 1, 9, settings)
