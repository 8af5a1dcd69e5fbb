"""The losses of rows come from the graph of the loss."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from recorder_loops import Training

from sonde.recorder.losses import TokenLossCapture, row_means, rows_of
from sonde.recorder.recorder import Recorder
from sonde.records.layout import SPIKES, RunLayout
from sonde.records.reader import read_records
from sonde.spikes.spike_log import read_spikes
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


def test_token_losses_that_are_reported_with_the_loss_are_those_of_the_rows(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    recorder = Recorder(tmp_path / "run", model, optimizer)

    def train_step(batch: dict[str, torch.Tensor]) -> None:
        token_losses = model(batch["x"]).squeeze(-1).square()
        recorder.loss(token_losses.mean(), token_losses=token_losses).backward()
        optimizer.step()
        optimizer.zero_grad()

    dice = torch.Generator().manual_seed(1)
    for step in range(1, 161):
        values = 1 + 0.1 * torch.randn(8, 3, 4, generator=dice)
        if step == 150:
            values[5] *= 2
        names = torch.arange(8) + 8 * step
        recorder.step(train_step, {"x": values, "sample_ids": names})
    recorder.run.close()
    assert 8 * 150 + 5 in [sample.sample for sample in read_spikes(tmp_path / "run").samples]


@pytest.mark.slow
@pytest.mark.parametrize("tells_loss", [False, True])
def test_a_garbled_row_is_noticed_by_its_own_loss(tmp_path: Path, tells_loss: bool) -> None:
    training = Training(tmp_path / "run", tells_loss=tells_loss)
    training.train(200, garbled=190)
    assert training.recorder is not None
    training.recorder.run.close()
    records = read_records(RunLayout(tmp_path / "run").record_file(SPIKES, 0))
    assert 190 in [record["step"] for record in records if record["type"] == SAMPLE]


def test_a_contrastive_loss_has_no_rows_of_its_own() -> None:
    scores = torch.randn(6, 6, requires_grad=True)
    own = torch.arange(6)
    assert row_means(F.cross_entropy(scores, own), 6) is None
    assert row_means(F.cross_entropy(scores, own.flip(0)), 6) is not None
    with TokenLossCapture() as capture:
        F.cross_entropy(scores, own)
    assert rows_of(capture.found, 6) == []
