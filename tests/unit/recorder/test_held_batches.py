"""Batches are held in memory and on disk within a budget, and no batch twice."""

import logging
import weakref
from pathlib import Path

import pytest
import torch
from recorder_loops import Training
from torch import Tensor, nn

from sonde.recorder import held_batches
from sonde.recorder.batch_file import KeptBatches
from sonde.recorder.held_batches import HeldUpdates
from sonde.recorder.moment import take_moment
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.recorder.update import MicroBatch, Update

IMAGES = (8, 3, 64, 64)
IMAGE_BYTES = 8 * 3 * 64 * 64 * 4


def update_of(step: int, batch: Tensor) -> Update:
    """Return an update with one batch."""
    update = Update(step, had_gradients=False)
    update.add(MicroBatch(batch, take_moment("cpu"), last=None))
    update.is_written = True
    return update


def train_on_images(run: Path, options: RecorderOptions, num: int) -> Recorder:
    """Train a small network on images of half a megabyte a batch."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train_step(images: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(images).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with Recorder(run, model, optimizer, options=options) as recorder:
        for _ in range(num):
            recorder.step(train_step, torch.randn(IMAGES))
            recorder.flush()
    return recorder


def test_the_batches_of_older_updates_are_let_go_where_they_are_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_batches, "MAX_BYTES", 3 * IMAGE_BYTES)
    held = HeldUpdates(16)
    for step in range(1, 11):
        held.append(update_of(step, torch.zeros(IMAGES)))
    assert [len(update.micro) for update in held] == [0] * 6 + [1] * 4
    assert [update.num_rows for update in held] == [8] * 10


def test_an_update_that_still_waits_to_be_written_keeps_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_batches, "MAX_BYTES", 0)
    held = HeldUpdates(16)
    updates = [update_of(step, torch.zeros(IMAGES)) for step in (1, 2)]
    updates[0].is_written = False
    for update in updates:
        held.append(update)
    assert [len(update.micro) for update in held] == [1, 1]
    updates[0].is_written = True
    held.append(update_of(3, torch.zeros(IMAGES)))
    assert [len(update.micro) for update in held] == [0, 0, 1]


def test_what_is_let_go_is_held_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_batches, "MAX_BYTES", 2 * IMAGE_BYTES)
    images: list[weakref.ref[Tensor]] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Recorder(tmp_path / "run", model, optimizer) as recorder:

        def train_step(batch: Tensor) -> None:
            images.append(weakref.ref(batch))
            recorder.loss(model(batch).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(12):
            recorder.step(train_step, torch.randn(IMAGES))
            recorder.flush()
        assert sum(image() is not None for image in images) <= 4


def test_batches_of_worker_processes_have_a_budget_of_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_batches, "_MAX_FILES", 3)
    held = HeldUpdates(16)
    for step in range(1, 9):
        held.append(update_of(step, torch.zeros(4).share_memory_()))
    assert [len(update.micro) for update in held] == [0] * 4 + [1] * 4


def test_going_back_forgets_later_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_batches, "MAX_BYTES", 2 * IMAGE_BYTES)
    held = HeldUpdates(4)
    for step in range(1, 7):
        held.append(update_of(step, torch.zeros(IMAGES)))
    held.go_back(5)
    assert [update.step for update in held] == [3, 4, 5]
    for step in range(6, 9):
        held.append(update_of(step, torch.zeros(IMAGES)))
    assert [len(update.micro) for update in held] == [0, 1, 1, 1]


def test_copies_of_a_batch_are_let_go_once_they_are_written_and_compared() -> None:
    micro = MicroBatch(torch.ones(3), take_moment("cpu"), last=None, copied=True)
    micro.awaits_comparison = True
    micro.is_written = True
    micro.let_go_of_copies()
    assert micro.to_write()[0] is not micro.tensors[0]
    micro.awaits_comparison = False
    micro.let_go_of_copies()
    assert micro.to_write()[0] is micro.tensors[0]


@pytest.mark.parametrize("state_every", [0, 5])
def test_images_on_disk_stay_within_the_budget_and_the_last_ones_are_kept(
    tmp_path: Path, state_every: int
) -> None:
    budget = 24 * IMAGE_BYTES
    options = RecorderOptions(state_every=state_every, max_bytes=budget)
    train_on_images(tmp_path / "run", options, 60)
    flight = tmp_path / "run" / "flight"
    used = sum(path.stat().st_size for path in flight.rglob("*") if path.is_file())
    assert used <= budget + 2 * IMAGE_BYTES  # a file is removed when the next one begins
    steps = KeptBatches(flight, 0).steps()
    assert steps[-1] == 60
    assert len(steps) >= 12


def test_an_event_after_batches_that_are_let_go_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(held_batches, "MAX_BYTES", 4 * 6 * 24 * 8 * 2)
    training = Training(tmp_path / "run", settings=RecorderOptions(state_every=0))
    with caplog.at_level(logging.WARNING):
        losses = training.train(100, garbled=90)
    assert [text for text in caplog.messages if text.startswith("step 90: loss")]
    monkeypatch.undo()
    assert losses == Training().train(100, garbled=90)
