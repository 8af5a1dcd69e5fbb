"""Threads and modes of torch, recorded and taken on again."""

from collections.abc import Iterator

import pytest
import torch

from sonde.train.determinism import describe_determinism, set_determinism


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = describe_determinism()
    yield
    set_determinism(before)


def test_what_was_recorded_is_taken_on() -> None:
    recorded = {**describe_determinism(), "num_threads": torch.get_num_threads() + 1, "matmul_precision": "high"}
    set_determinism(recorded)
    assert describe_determinism() == recorded


def test_what_is_unknown_or_no_setting_changes_nothing() -> None:
    before = describe_determinism()
    set_determinism({})
    set_determinism({"num_threads": "many", "matmul_precision": "exact", "other": 1, "cudnn_benchmark": None})
    set_determinism({"num_threads": 0})
    assert describe_determinism() == before
