"""Threads and modes of torch, recorded and taken on again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sonde.records.append import RecordFile
from sonde.records.layout import EVENTS, RunLayout
from sonde.train.determinism import EVENT, describe_determinism, set_determinism, warn_about_changes


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = describe_determinism()
    yield
    set_determinism(before)


def test_what_was_recorded_is_taken_on() -> None:
    recorded = {
        **describe_determinism(),
        "num_threads": torch.get_num_threads() + 1,
        "matmul_precision": "high",
    }
    set_determinism(recorded)
    assert describe_determinism() == recorded


def test_what_is_unknown_or_no_setting_changes_nothing() -> None:
    before = describe_determinism()
    set_determinism({})
    set_determinism(
        {"num_threads": "many", "matmul_precision": "exact", "other": 1, "cudnn_benchmark": None}
    )
    set_determinism({"num_threads": 0})
    set_determinism({"num_threads": 10**30})
    assert describe_determinism() == before


def test_another_number_of_threads_is_told_at_a_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_about_changes(tmp_path)
    with RecordFile(RunLayout(tmp_path).record_file(EVENTS, 0)) as file:
        file.append({"event": EVENT, **describe_determinism()})
    warn_about_changes(tmp_path)
    assert not caplog.messages
    torch.set_num_threads(torch.get_num_threads() + 1)
    warn_about_changes(tmp_path)
    (message,) = caplog.messages
    assert message.startswith(f"the number of threads is {torch.get_num_threads()}, and was")
