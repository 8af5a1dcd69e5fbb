"""The order of a loader's batches is noted, and taken up again in the middle of an epoch."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sonde.data.skip_list import SkipList
from sonde.recorder.batch_tree import TRAIN
from sonde.recorder.samples import BatchOrder, follow


def made(
    num_workers: int = 0, skip: SkipList | None = None, batch_size: int = 4
) -> tuple[DataLoader[Any], BatchOrder]:
    dataset: Any = list(range(20))
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=num_workers
    )
    order = follow(loader, skip or SkipList())
    assert order is not None
    return loader, order


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_batch_has_the_numbers_of_its_samples(num_workers: int) -> None:
    loader, order = made(num_workers)
    for _ in range(2):
        for batch in loader:
            assert order.taken() == batch.tolist()


def test_an_epoch_is_gone_on_with_where_it_was_left() -> None:
    torch.manual_seed(3)
    loader, order = made()
    batches = iter(loader)
    for _ in range(2):
        next(batches)
        order.taken()
    state = order.state_dict()
    rest = [batch.tolist() for batch in batches]
    torch.manual_seed(8)
    loader, order = made()
    order.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == rest
    assert len(list(loader)) == 5


def test_an_epoch_that_was_over_is_not_gone_on_with() -> None:
    loader, order = made()
    for _ in loader:
        order.taken()
    state = order.state_dict()
    loader, order = made()
    order.load_state_dict(state)
    assert len(list(loader)) == 5


def test_samples_are_left_out_and_no_other_moves() -> None:
    torch.manual_seed(3)
    whole = [batch.tolist() for batch in made()[0]]
    torch.manual_seed(3)
    loader, _ = made(skip=SkipList({TRAIN: [7]}))
    assert [batch.tolist() for batch in loader] == [
        [row for row in batch if row != 7] for batch in whole
    ]


def test_another_sample_stands_in_where_nothing_is_left() -> None:
    loader, _ = made(skip=SkipList({TRAIN: [7, 8, 19]}), batch_size=1)
    found = sorted(int(batch) for batch in loader)
    assert len(found) == 20
    assert not {7, 8, 19} & set(found)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


class WithoutLength(Dataset[int]):
    def __getitem__(self, number: int) -> int:
        return number


def test_a_loader_without_numbers_is_not_followed() -> None:
    assert follow([1, 2, 3], SkipList()) is None
    loader: DataLoader[int] = DataLoader(Stream(), 4)
    assert follow(loader, SkipList()) is None
    assert [len(batch) for batch in loader] == [4] * 5


def test_a_dataset_without_a_length_is_followed() -> None:
    batches = [[3, 1], [7], [2, 0]]
    loader: DataLoader[int] = DataLoader(WithoutLength(), batch_sampler=batches)
    order = follow(loader, SkipList({TRAIN: [1, 7]}))
    assert order is not None
    # A batch of which nothing is left stays as it is: nobody knows what could stand in.
    assert [batch.tolist() for batch in loader] == [[3], [7], [2, 0]]


@pytest.mark.parametrize("num_taken", [2, 5, 8])
def test_a_loader_with_a_generator_of_its_own_goes_on_with_the_same_batches(
    num_taken: int,
) -> None:
    def with_generator(seed: int) -> tuple[DataLoader[Any], BatchOrder]:
        dataset: Any = list(range(20))
        generator = torch.Generator().manual_seed(seed)
        loader: DataLoader[Any] = DataLoader(dataset, 4, shuffle=True, generator=generator)
        order = follow(loader, SkipList())
        assert order is not None
        return loader, order

    def forever(loader: DataLoader[Any], order: BatchOrder) -> Iterator[list[int]]:
        while True:
            for batch in loader:
                order.taken()
                yield batch.tolist()

    loader, order = with_generator(3)
    batches = forever(loader, order)
    for _ in range(num_taken):
        next(batches)
    state = order.state_dict()
    rest = [next(batches) for _ in range(12)]
    loader, order = with_generator(99)
    order.load_state_dict(state)
    assert list(islice(forever(loader, order), 12)) == rest
