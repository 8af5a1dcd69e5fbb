"""The order of an epoch, for any data, budget, ranks, and places to stop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sonde.data.batching import Batches, Position, ShardedBatchSampler, batch_by_tokens

BATCHES = st.builds(
    lambda lengths, max_tokens: batch_by_tokens(np.array(lengths, np.int64), max_tokens, seed=1),
    st.lists(st.integers(1, 30), min_size=1, max_size=80),
    st.integers(30, 120),
)
SEED = st.integers(0, 5)


def rounds(
    batches: Batches, seed: int, num_shards: int, state: dict[str, int] | None
) -> list[list[list[int]]]:
    """What each round gives to each rank, from a state to the end of its epoch."""
    samplers = [
        ShardedBatchSampler(batches, seed=seed, num_shards=num_shards, shard_id=shard)
        for shard in range(num_shards)
    ]
    for sampler in samplers:
        if state:
            sampler.load_state_dict(state)
    return [list(row) for row in zip(*samplers, strict=True)]


def flat(table: list[list[list[int]]]) -> list[list[int]]:
    return [batch for row in table for batch in row if batch]


@given(BATCHES, SEED, st.integers(1, 9))
def test_each_sample_once_an_epoch_over_all_ranks(
    batches: Batches, seed: int, num_shards: int
) -> None:
    table = rounds(batches, seed, num_shards, None)
    assert sorted(number for batch in flat(table) for number in batch) == list(
        range(len(batches.samples))
    )
    assert all(all(row) for row in table[:-1])  # only the last round may leave ranks without


@given(BATCHES, SEED, st.integers(1, 9))
def test_the_global_order_does_not_depend_on_the_ranks(
    batches: Batches, seed: int, num_shards: int
) -> None:
    assert flat(rounds(batches, seed, num_shards, None)) == flat(rounds(batches, seed, 1, None))


@given(
    BATCHES,
    SEED,
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4)), max_size=6),
    st.integers(1, 9),
)
def test_stopping_anywhere_and_resuming_with_other_ranks_continues_the_order(
    batches: Batches, seed: int, stretches: list[tuple[int, int]], last_shards: int
) -> None:
    expected = [
        flat(
            rounds(
                batches,
                seed,
                1,
                {**ShardedBatchSampler(batches, seed=seed).state_dict(), "epoch": epoch},
            )
        )
        for epoch in (1, 2, 3, 4, 5, 6, 7)
    ]
    state = ShardedBatchSampler(batches, seed=seed).state_dict()
    seen: list[list[int]] = []
    for num_shards, num_rounds in stretches:
        walker = ShardedBatchSampler(batches, seed=seed, num_shards=num_shards)
        walker.load_state_dict(state)
        for row in rounds(batches, seed, num_shards, state)[:num_rounds]:
            seen += flat([row])
            walker.advance()
        state = walker.state_dict()
    seen += flat(rounds(batches, seed, last_shards, state))
    epochs = state["epoch"]
    assert seen == [batch for epoch in expected[:epochs] for batch in epoch]


@given(st.integers(1, 50), st.integers(1, 12))
def test_an_exhausted_epoch_is_the_start_of_the_next(num_batches: int, num_shards: int) -> None:
    sampler = ShardedBatchSampler(
        batch_by_tokens(np.ones(num_batches, np.int64), 1), num_shards=num_shards
    )
    for _ in range(-(-num_batches // num_shards)):
        assert sampler.position.epoch == 1
        sampler.advance()
    assert sampler.position == Position(epoch=2, offset=0)


@given(BATCHES, SEED, st.integers(1, 5), st.data())
def test_leaving_samples_out_moves_no_other(
    batches: Batches, seed: int, num_shards: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from(batches.samples.tolist())))
    for shard in range(num_shards):
        plain = ShardedBatchSampler(batches, seed=seed, num_shards=num_shards, shard_id=shard)
        without = ShardedBatchSampler(batches, seed=seed, num_shards=num_shards, shard_id=shard)
        without.left_out = np.array(sorted(gone), np.int64)
        assert list(without) == [
            [number for number in batch if number not in gone] for batch in plain
        ]
