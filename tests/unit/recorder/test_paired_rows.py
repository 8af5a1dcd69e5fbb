"""Which batches hold pairs, and what their rows are."""

from typing import Any

import pytest
import torch

from sonde.recorder.paired_rows import PairedRow, paired_rows

DICE = torch.Generator().manual_seed(4)
SOURCES = torch.randint(5, 400, (6, 14), generator=DICE)
TARGETS = torch.randint(5, 400, (6, 11), generator=DICE)


def test_rows_of_a_translation_are_pairs_without_their_padding() -> None:
    sources = SOURCES.clone()
    sources[0, 9:] = 0
    mask = (sources != 0).long()
    labels = TARGETS.clone()
    labels[0, 7:] = -100
    rows = paired_rows({"input_ids": sources, "attention_mask": mask, "labels": labels})
    assert len(rows) == 6
    assert rows[0] == PairedRow(SOURCES[0, :9].tolist(), TARGETS[0, :7].tolist())
    assert rows[1] == PairedRow(SOURCES[1].tolist(), TARGETS[1].tolist())


def test_one_copied_target_among_others_is_a_pair() -> None:
    targets = torch.randint(5, 400, (6, 14), generator=DICE)
    targets[2] = SOURCES[2]
    assert paired_rows((SOURCES, targets))[2] == PairedRow(SOURCES[2].tolist(), SOURCES[2].tolist())


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param({"input_ids": SOURCES, "labels": SOURCES}, id="a language model"),
        pytest.param((SOURCES[:, :-1], SOURCES[:, 1:]), id="shifted"),
        pytest.param({"input_ids": SOURCES, "labels": SOURCES % 7}, id="a tagger"),
        pytest.param({"input_ids": SOURCES, "labels": SOURCES[:, 0]}, id="a classifier"),
        pytest.param((SOURCES, TARGETS.float()), id="numbers"),
        pytest.param((SOURCES, TARGETS[:3]), id="other rows"),
        pytest.param({"input_ids": SOURCES, "labels": "words"}, id="no tensor"),
        pytest.param(SOURCES, id="one tensor"),
        pytest.param([SOURCES, None], id="nothing"),
    ],
)
def test_other_batches_hold_no_pairs(batch: Any) -> None:
    assert paired_rows(batch) == []


def test_answers_that_count_in_their_own_text_are_no_pairs() -> None:
    labels = SOURCES.clone()
    labels[:, :8] = -100
    assert paired_rows({"input_ids": SOURCES, "labels": labels}) == []
