"""Samples keep their numbers on the way through a loader, and some are left out."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sonde.data.skip_list import CONTENT, SkipList
from sonde.recorder.batch_tree import TRAIN, sample_names
from sonde.recorder.samples import TAG, tag

DATASET = [{"input_ids": torch.tensor([number, number + 1, 2 * number])} for number in range(20)]


def numbers(loader: Any) -> list[list[int]]:
    found = []
    for batch in loader:
        assert [int(row[0]) for row in batch["input_ids"]] == batch[TAG].tolist()
        found.append(batch[TAG].tolist())
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_carry_the_numbers_of_their_samples(num_workers: int) -> None:
    a_list_is_a_dataset: Any = DATASET
    loader: DataLoader[Any] = DataLoader(
        a_list_is_a_dataset, batch_size=4, shuffle=True, num_workers=num_workers
    )
    assert tag(loader, SkipList())
    assert sorted(row for batch in numbers(loader) for row in batch) == list(range(20))


def test_pictures_with_the_same_caption_are_different_samples() -> None:
    pictures = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(2, 3, 4, 4)
    captions = torch.tensor([[5, 6, 7], [5, 6, 7]])
    first, second = sample_names((pictures, captions))
    assert first != second
    assert sample_names((pictures[:1], captions[:1])) == [first]


def test_a_mask_that_keeps_just_the_padding_does_not_make_all_rows_the_same() -> None:
    tokens = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 0]])
    reversed_mask = (tokens == 0).long()
    first, second = sample_names({"input_ids": tokens, "attention_mask": reversed_mask})
    assert first != second


def test_a_sample_on_the_skip_list_is_left_out_and_no_other_moves() -> None:
    # a list is a dataset to torch
    loader: DataLoader[Any] = DataLoader(DATASET, batch_size=4)  # type: ignore[arg-type]
    content = sample_names({"input_ids": DATASET[9]["input_ids"][None]})[0][1]
    tag(loader, SkipList({TRAIN: [2], CONTENT: [content]}))
    assert numbers(loader)[:3] == [[0, 1, 3], [4, 5, 6, 7], [8, 10, 11]]


def test_the_next_sample_stands_in_for_a_batch_of_which_nothing_is_left() -> None:
    # a list is a dataset to torch
    loader: DataLoader[Any] = DataLoader(DATASET, batch_size=1)  # type: ignore[arg-type]
    tag(loader, SkipList({TRAIN: [2, 3, 19]}))
    assert numbers(loader)[1:5] == [[1], [4], [4], [4]]
    assert numbers(loader)[-1] == [0]


def test_a_loader_is_tagged_once() -> None:
    # a list is a dataset to torch
    loader: DataLoader[Any] = DataLoader(DATASET, batch_size=4)  # type: ignore[arg-type]
    assert tag(loader, SkipList())
    assert tag(loader, SkipList())
    assert numbers(loader)[0] == [0, 1, 2, 3]
    assert not tag(iter([1, 2]), SkipList())
