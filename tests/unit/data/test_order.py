import numpy as np
import pytest

from sonde.data.batching import epoch_order, order_by_length
from sonde.errors import SettingError


@pytest.mark.parametrize("largest", [0, 5, 100, 70_000, 2**40])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_order_is_that_of_two_stable_sorts(largest: int, seed: int | None) -> None:
    chance = np.random.default_rng(largest)
    source, target = chance.integers(0, largest + 1, (2, 3000))
    expected = np.argsort(target, kind="stable")
    expected = expected[np.argsort(source[expected], kind="stable")]
    found = order_by_length(source, target, seed=seed)
    assert sorted(found.tolist()) == list(range(3000))
    assert np.array_equal(source[found], source[expected])
    assert np.array_equal(target[found], target[expected])
    if seed is None:
        assert np.array_equal(found, expected)
    elif largest <= 5:
        assert not np.array_equal(found, expected)


def test_an_epochs_order_is_a_pure_function_of_seed_and_epoch() -> None:
    assert epoch_order(10, seed=1, epoch=1).tolist() == [5, 6, 3, 0, 7, 2, 1, 4, 9, 8]
    assert epoch_order(10, seed=1, epoch=2).tolist() == [5, 6, 9, 3, 2, 1, 0, 8, 4, 7]


def test_other_seeds_and_epochs_give_other_orders() -> None:
    orders = {
        tuple(epoch_order(50, seed=seed, epoch=epoch).tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(orders) == 16
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_nothing_can_be_ordered() -> None:
    assert epoch_order(0, seed=1, epoch=1).tolist() == []
    assert order_by_length(np.array([], np.int64), np.array([], np.int64), seed=1).tolist() == []


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(SettingError, match="-1"):
        epoch_order(3, seed=-1, epoch=1)


@pytest.mark.parametrize("num_bits", [9, 20, 23, 24, 30])
def test_the_order_is_that_of_0_2_which_had_64_bits_for_lengths_tie_and_sample(
    num_bits: int,
) -> None:
    number = 900
    longest = (1 << num_bits) - 1
    target = np.arange(number) % 3
    source = np.where(target == 1, longest, 5)
    target[0] = longest
    ties = (
        np.random.PCG64(np.random.SeedSequence([7]))
        .random_raw(number // 4)
        .view(np.uint16)
        .astype(np.uint64)
    )
    room = 64 - 2 * num_bits - number.bit_length()
    if 8 <= room < 16:
        ties >>= np.uint64(16 - room)
    assert (
        order_by_length(source, target, seed=7).tolist()
        == np.lexsort((ties, target, source)).tolist()
    )
