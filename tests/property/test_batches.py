"""Batches, for any lengths and limits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sonde.data.batching import batch_by_tokens, cut_batches

LENGTHS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=120)
LIMIT = st.none() | st.integers(1, 12)


def reference_cut(
    costs: list[int], max_tokens: int, max_sentences: int | None, multiple_of: int
) -> list[int]:
    bounds = [0]
    start = 0
    while start < len(costs):
        size = 0
        longest = 0
        for cost in costs[start:]:
            longest = max(longest, cost)
            if (size + 1) * longest > max_tokens or (max_sentences and size + 1 > max_sentences):
                break
            size += 1
        if size > multiple_of:
            size -= size % multiple_of
        start += size
        bounds.append(start)
    return bounds


@given(LENGTHS, st.integers(40, 400), LIMIT, st.integers(1, 9), st.none() | st.integers(0, 3))
def test_no_batch_passes_a_limit_and_each_sample_is_in_one(
    lengths: list[tuple[int, int]],
    max_tokens: int,
    max_sentences: int | None,
    multiple_of: int,
    seed: int | None,
) -> None:
    table = np.array(lengths, np.int64).reshape(-1, 2)
    batches = batch_by_tokens(table, max_tokens, max_sentences, multiple_of, seed=seed)
    assert sorted(batches.samples.tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) > 0
        assert len(batch) * table[batch].max() <= max_tokens
        assert max_sentences is None or len(batch) <= max_sentences
        assert len(batch) <= multiple_of or len(batch) % multiple_of == 0


@given(
    st.lists(st.integers(0, 30), max_size=80),
    st.integers(30, 200),
    LIMIT,
    st.integers(1, 9),
    st.booleans(),
)
def test_cuts_are_those_of_the_reference(
    costs: list[int], max_tokens: int, max_sentences: int | None, multiple_of: int, in_order: bool
) -> None:
    costs = sorted(costs) if in_order else costs
    found = cut_batches(np.array(costs, np.int64), max_tokens, max_sentences, multiple_of)
    assert found.tolist() == reference_cut(costs, max_tokens, max_sentences, multiple_of)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 60))
def test_what_is_too_long_is_skipped_and_nothing_else(lengths: list[int], max_tokens: int) -> None:
    batches = batch_by_tokens(np.array(lengths, np.int64), max_tokens, too_long="skip")
    too_long = [number for number, length in enumerate(lengths) if length > max_tokens]
    assert batches.skipped.tolist() == too_long
    assert sorted([*batches.samples.tolist(), *too_long]) == list(range(len(lengths)))
