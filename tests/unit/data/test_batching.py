import random
from typing import Any

import numpy as np
import pytest

from sonde.data.batching import Batches, batch_by_tokens, cut_batches, padding_efficiency
from sonde.errors import SettingError


def reference_cut(
    costs: list[int], max_tokens: int, max_sentences: int, multiple_of: int
) -> list[int]:
    """fairseq's test baseline in our words: extend until a limit is passed, then cut back. 0 is no
    limit.
    """
    bounds = [0]
    start = 0
    while start < len(costs):
        size = 0
        while start + size < len(costs):
            size += 1
            longest = max(costs[start : start + size])
            if (max_tokens and size * longest > max_tokens) or (
                max_sentences and size > max_sentences
            ):
                size -= 1
                break
        if size > multiple_of:
            size -= size % multiple_of
        start += size
        bounds.append(start)
    return bounds


@pytest.mark.parametrize(
    ("costs", "max_tokens", "max_sentences", "multiple_of", "expected"),
    [
        (list(range(1, 11)), 20, None, 4, [0, 4, 6, 8, 10]),
        ([3] * 10, 15, None, 4, [0, 4, 8, 10]),
        ([3] * 10, 30, None, 4, [0, 8, 10]),
        ([2] * 11, None, 5, 2, [0, 4, 8, 10, 11]),
        ([3] * 5, 100, None, 8, [0, 5]),
        ([], 10, None, 1, [0]),
    ],
)
def test_fairseqs_examples(
    costs: list[int],
    max_tokens: int | None,
    max_sentences: int | None,
    multiple_of: int,
    expected: list[int],
) -> None:
    assert (
        cut_batches(np.array(costs, np.int64), max_tokens, max_sentences, multiple_of).tolist()
        == expected
    )


@pytest.mark.parametrize("num_samples", [10, 11])
def test_fairseqs_sweep_against_its_reference(num_samples: int) -> None:
    chance = random.Random(num_samples)
    for max_sentences in range(num_samples + 2):
        for max_tokens in range(10):
            for multiple_of in range(1, num_samples + 2):
                costs = [chance.randint(0, max_tokens) for _ in range(num_samples)]
                found = cut_batches(
                    np.array(costs), max_tokens or None, max_sentences or None, multiple_of
                )
                assert found.tolist() == reference_cut(
                    costs, max_tokens, max_sentences, multiple_of
                )


def test_the_last_samples_are_not_dropped() -> None:
    batches = batch_by_tokens(np.full(461, 20), 4096, multiple_of=8)
    assert sorted(batches.samples.tolist()) == list(range(461))


def test_samples_are_ordered_by_source_then_target_then_number() -> None:
    lengths = np.array([[3, 9], [3, 2], [1, 5], [3, 2], [1, 4]])
    assert batch_by_tokens(lengths, 100).samples.tolist() == [4, 2, 1, 3, 0]


def test_a_pair_costs_its_longer_side_or_its_target() -> None:
    lengths = np.array([[5, 2], [5, 2], [5, 2], [5, 2]])
    assert [len(batch) for batch in batch_by_tokens(lengths, 10)] == [2, 2]
    assert [len(batch) for batch in batch_by_tokens(lengths, 10, count="target")] == [4]


def test_a_sample_longer_than_the_budget_is_an_error_that_names_it() -> None:
    with pytest.raises(SettingError, match="1 samples are longer") as caught:
        batch_by_tokens(np.array([3, 50, 3]), 10)
    assert "sample 1 has 50 tokens" in str(caught.value)


def test_or_it_is_skipped_and_counted() -> None:
    batches = batch_by_tokens(np.array([3, 50, 3, 11]), 10, too_long="skip")
    assert batches.skipped.tolist() == [1, 3]
    assert sorted(batches.samples.tolist()) == [0, 2]


def test_a_seed_shuffles_only_samples_of_equal_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 6, (2000, 2))
    plain = batch_by_tokens(lengths, 64)
    shuffled = batch_by_tokens(lengths, 64, seed=3)
    assert plain.samples.tolist() != shuffled.samples.tolist()
    assert np.array_equal(lengths[plain.samples], lengths[shuffled.samples])
    assert np.array_equal(plain.bounds, shuffled.bounds)
    assert shuffled.samples.tolist() == batch_by_tokens(lengths, 64, seed=3).samples.tolist()


def test_batches_are_a_sequence_of_arrays() -> None:
    batches = batch_by_tokens(np.array([1, 1, 1]), None, 2)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2]]
    assert batches[-1].tolist() == [2]
    with pytest.raises(IndexError):
        batches[2]


def test_a_fingerprint_tells_batches_apart() -> None:
    lengths = np.array([1, 2, 3, 4])
    assert batch_by_tokens(lengths, 8).fingerprint == batch_by_tokens(lengths, 8).fingerprint
    assert batch_by_tokens(lengths, 8).fingerprint != batch_by_tokens(lengths, 6).fingerprint


def test_padding_efficiency_is_the_share_of_real_tokens() -> None:
    batches = Batches(np.array([0, 1, 2]), np.array([0, 2, 3]), np.array([], np.int64))
    assert padding_efficiency(np.array([2, 4, 5]), batches) == (2 + 4 + 5) / (8 + 5)
    assert (
        padding_efficiency(np.array([], np.int64), batch_by_tokens(np.array([], np.int64), 4))
        == 1.0
    )


@pytest.mark.parametrize("setting", [{"max_tokens": 0}, {"max_sentences": 0}, {"multiple_of": 0}])
def test_limits_below_one_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        batch_by_tokens(np.array([0]), **setting)


def test_lengths_of_another_shape_are_refused() -> None:
    with pytest.raises(SettingError, match="shape"):
        batch_by_tokens(np.zeros((2, 3), np.int64), 5)
    with pytest.raises(SettingError, match="negative"):
        batch_by_tokens(np.array([-1]), 5)
