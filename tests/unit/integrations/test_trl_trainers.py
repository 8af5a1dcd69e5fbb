"""TRL's trainers: their rows are watched, and training is the same with and without it."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import trl_training
from trl_training import SPOILED

from sonde.cli.main import run as sonde
from sonde.integrations.trl_trainers import fold_pairs, unfold_pairs
from sonde.recorder.batch_tree import num_rows, without_rows
from sonde.recorder.losses import row_means
from sonde.spikes.spike_log import read_spikes

with_trl = pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11")
# TRL and the libraries below it warn when they are imported
ignore_warnings = pytest.mark.filterwarnings("ignore")


@with_trl
@ignore_warnings
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_the_spoiled_sample_is_named_and_the_weights_are_the_same(
    tmp_path: Path, kind: str
) -> None:
    watched = trl_training.train(kind, tmp_path / "run")
    found = read_spikes(tmp_path / "run")
    assert {sample.sample for sample in found.samples} == {SPOILED}
    plain = trl_training.train(kind, None)
    assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))


@with_trl
@ignore_warnings
@pytest.mark.slow
def test_it_is_said_at_the_start_that_rows_of_packed_samples_are_not_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sonde")
    trl_training.train(
        "sft",
        tmp_path / "run",
        max_steps=3,
        packing=True,
        max_length=64,
        per_device_train_batch_size=2,
    )
    opening = [line for line in caplog.messages if "not watched: rows" in line]
    assert len(opening) == 1
    assert "several samples" in opening[0]


@with_trl
@pytest.mark.soak
def test_a_step_of_preferences_is_replayed_to_the_bit_by_the_script(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trl_training.train("dpo", run)
    script = [sys.executable, trl_training.__file__, "dpo", str(run)]
    assert sonde(["replay", str(run), "--step", "38", "--", *script]) == 0


def test_both_texts_of_a_pair_are_one_row_and_come_back_in_the_order_of_the_trainer() -> None:
    batch: dict[str, Any] = {
        "input_ids": torch.arange(24).view(6, 4),
        "ref_chosen_logps": torch.arange(3.0),
        "use_cache": False,
    }
    folded, names = fold_pairs(batch)
    assert num_rows(folded) == 3
    assert folded["input_ids"][1].tolist() == [[4, 5, 6, 7], [16, 17, 18, 19]]
    unfolded = unfold_pairs(folded, names)
    assert torch.equal(unfolded["input_ids"], batch["input_ids"])
    kept = unfold_pairs(without_rows(folded, [0, 2]), names)
    assert kept["input_ids"][:, 0].tolist() == [0, 8, 12, 20]
    assert kept["ref_chosen_logps"].tolist() == [0.0, 2.0]


def test_the_pairs_behind_a_preference_loss_have_a_loss_each() -> None:
    margins = torch.tensor([1.0, -9.0, 2.0], requires_grad=True)
    loss = (-F.logsigmoid(0.1 * margins)).mean() * 1.0
    found = row_means(0.0 + loss, 3)
    assert found is not None
    assert found.losses == pytest.approx((-F.logsigmoid(0.1 * margins)).detach().numpy())
    assert row_means(loss + margins.square().mean(), 3) is None
    assert row_means(loss, 6) is None
