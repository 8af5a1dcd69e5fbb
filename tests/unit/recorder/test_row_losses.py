"""The losses of rows come from the graph of the loss."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from recorder_loops import Training

from sonde.recorder.losses import row_means
from sonde.records.layout import SPIKES, RunLayout
from sonde.records.reader import read_records
from sonde.spikes.spike_records import SAMPLE


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_rows_of_a_cross_entropy_are_found_behind_what_is_done_to_it(reduction: str) -> None:
    torch.manual_seed(1)
    logits = torch.randn(4, 6, 9, requires_grad=True)
    target = torch.randint(0, 9, (4, 6))
    target[2, 3:] = -100
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction=reduction)
    found = row_means(loss / 7 * 2, 4)
    assert found is not None
    whole = (
        F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(4, 6).sum(1)
    )
    assert found.counts.tolist() == [6, 6, 3, 6]
    assert found.losses == pytest.approx((whole.detach() / torch.tensor(found.counts)).numpy())


def test_a_loss_without_rows_has_none() -> None:
    logits = torch.randn(6, 9, requires_grad=True)
    loss = F.cross_entropy(logits, torch.randint(0, 9, (6,)))
    assert row_means(logits.sum(), 6) is None
    assert row_means(loss, 4) is None
    assert row_means(loss.detach(), 6) is None
    loss.backward()
    assert row_means(loss, 6) is None


@pytest.mark.slow
@pytest.mark.parametrize("tells_loss", [False, True])
def test_a_garbled_row_is_noticed_by_its_own_loss(tmp_path: Path, tells_loss: bool) -> None:
    training = Training(tmp_path / "run", tells_loss=tells_loss)
    training.train(200, garbled=190)
    assert training.recorder is not None
    training.recorder.run.close()
    records = read_records(RunLayout(tmp_path / "run").record_file(SPIKES, 0))
    assert 190 in [record["step"] for record in records if record["type"] == SAMPLE]
