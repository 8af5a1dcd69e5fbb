"""Which samples are suspects, and how much of a loss they explain."""

import math

import pytest
import torch

from sonde.forensics.losses import Losses
from sonde.forensics.sample_test import explained, suspect_rows
from sonde.train.task import StepOutput


def losses(values: list[float], first: int = 0) -> Losses:
    ids = [("train", first + place) if value != -1 else ("train", -1) for place, value in enumerate(values)]
    output = StepOutput(
        loss_sum=torch.tensor(sum(values)),
        weight=float(len(values)),
        sample_losses=torch.tensor(values),
        token_counts=torch.full((len(values),), 10),
        sample_ids=ids,
    )
    return Losses(loss=sum(values) / len(values), loss_sum=sum(values), weight=float(len(values)), outputs=(output,))


CALM = [losses([1.0, 1.1, 0.9, 1.05], first=100), losses([0.95, 1.0, 1.02, 1.08], first=200)]


def test_samples_far_above_others_are_suspects_worst_first() -> None:
    found = suspect_rows(losses([1.0, 4.0, 1.1, 6.0]), CALM)
    assert [one.row for one in found] == [3, 1]
    assert found[0].excess == pytest.approx(49.8, abs=0.3)


def test_one_that_loses_a_little_more_is_no_suspect_beside_one_that_loses_everything() -> None:
    assert [one.row for one in suspect_rows(losses([1.0, 1.6, 1.1, 9.0]), CALM)] == [3]
    assert [one.row for one in suspect_rows(losses([1.0, 1.6, 1.1, 1.0]), CALM)] == [1]


def test_a_loss_that_is_not_finite_comes_first() -> None:
    found = suspect_rows(losses([1.0, math.nan, 1.1, 9.0]), CALM)
    assert (found[0].row, found[0].z) == (1, math.inf)


def test_the_row_of_a_rank_without_a_batch_is_never_a_suspect() -> None:
    assert suspect_rows(losses([1.0, -1.0]), CALM) == []
    assert suspect_rows(losses([9.0]), []) == []


def test_what_is_explained_is_the_part_of_the_excess_that_is_gone() -> None:
    assert explained(5.0, 3.0, 1.0) == 0.5
    assert explained(5.0, 0.5, 1.0) == 1.0
    assert explained(0.9, 0.5, 1.0) == 0.0
    assert explained(math.nan, 1.0, 1.0) == 1.0
    assert explained(math.nan, math.nan, 1.0) == 0.0
