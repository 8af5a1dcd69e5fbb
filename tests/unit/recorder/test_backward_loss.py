"""Loops that compute the loss in their step function and tell it to nobody: the recorder takes what
backward is called on.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recorder_loops import NUM_ROWS, Model, Training, batches
from torch import Tensor, nn

from sonde.forensics.verdict import read_verdict
from sonde.recorder.batch_file import KeptBatches
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.spikes.spike_log import read_spikes

Step = Callable[..., Any]


def plain(directory: Path, **arguments: Any) -> tuple[Training, Step]:
    """A training whose model returns scores, and a step function as most people write it."""
    training = Training(directory, model=lambda: Model(returns_loss=False), **arguments)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        training.optimizer.zero_grad()
        loss = F.cross_entropy(training.model(batch[0]).flatten(0, 1), batch[1].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()
        return loss

    return training, train_step


def run_on(training: Training, train_step: Step, data: Any) -> list[float]:
    assert training.recorder is not None
    losses = [training.recorder.step(train_step, batch).item() for batch in data]
    training.close()
    return losses


def recorded(directory: Path) -> list[float]:
    return [step.loss for step in read_steps(directory).by_number.values()]


def test_a_bad_update_of_a_plain_loop_is_skipped_before_the_optimizer_moves(tmp_path: Path) -> None:
    training, train_step = plain(tmp_path / "run", on_event="skip")
    assert training.recorder is not None
    moved = []
    for batch in batches(100, garbled=90):
        before = training.weight()
        training.recorder.step(train_step, batch)
        moved.append(not torch.equal(before, training.weight()))
    training.close()
    assert [number for number, has_moved in enumerate(moved, 1) if not has_moved] == [90]


def test_the_rows_of_a_plain_loop_are_seen_and_its_scene_names_the_row(tmp_path: Path) -> None:
    training, train_step = plain(tmp_path / "run", settings=RecorderOptions())
    run_on(training, train_step, batches(100, garbled=90))
    first = read_verdict(tmp_path / "run", 90).causes[0]
    assert (first.cause, len(first.suspects)) == ("garbled_text", 1)
    samples = read_spikes(tmp_path / "run").at(90).samples()
    assert len(samples) == NUM_ROWS


def test_what_is_recorded_is_what_the_step_function_returns(tmp_path: Path) -> None:
    training, train_step = plain(tmp_path / "run")
    losses = run_on(training, train_step, batches(6))
    assert recorded(tmp_path / "run") == losses
    kept = KeptBatches(tmp_path / "run" / "flight", 0)
    assert {kept.load(step).loss_from for step in kept.steps()} == {"backward"}


@pytest.mark.parametrize("returns", [True, False])
def test_a_loss_that_is_divided_and_scaled_is_recorded_as_it_is(
    tmp_path: Path, returns: bool
) -> None:
    training = Training(tmp_path / "run", model=lambda: Model(returns_loss=False))
    assert training.recorder is not None
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    losses: list[float] = []

    def train_step(batch: tuple[Tensor, Tensor], last: bool) -> Tensor | None:
        loss = F.cross_entropy(training.model(batch[0]).flatten(0, 1), batch[1].flatten())
        scaler.scale(loss / 2).backward()
        losses.append(loss.item())
        if last:
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()
        return loss if returns else None

    for number, batch in enumerate(batches(12), 1):
        training.recorder.step(train_step, batch, last=number % 2 == 0)
    training.close()
    factor = 1.0 if returns else 0.5  # without a loss that is returned, nobody tells the factor
    pairs = zip(losses[::2], losses[1::2], strict=True)
    expected = [factor * (first + second) / 2 for first, second in pairs]
    assert recorded(tmp_path / "run") == pytest.approx(expected, rel=1e-6)
    kept = KeptBatches(tmp_path / "run" / "flight", 0)
    assert {kept.load(step).loss_factor for step in kept.steps()} == {2 * factor}


def test_a_loss_that_is_not_returned_is_recorded_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training, train_step = plain(tmp_path / "run")
    assert training.recorder is not None
    losses = []

    def returns_nothing(batch: Any) -> None:
        losses.append(train_step(batch).item())

    for batch in batches(5):
        training.recorder.step(returns_nothing, batch)
    training.close()
    assert recorded(tmp_path / "run") == losses
    assert "no loss was seen" not in caplog.text


def test_with_two_backward_passes_the_loss_is_the_one_that_is_returned(tmp_path: Path) -> None:
    training, _ = plain(tmp_path / "run")

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        training.optimizer.zero_grad()
        loss = F.cross_entropy(training.model(batch[0]).flatten(0, 1), batch[1].flatten())
        loss.backward()
        penalty = torch.stack([part.square().sum() for part in training.model.parameters()]).sum()
        (1e-4 * penalty).backward()
        training.optimizer.step()
        return loss

    losses = run_on(training, train_step, batches(5))
    assert recorded(tmp_path / "run") == losses
    kept = KeptBatches(tmp_path / "run" / "flight", 0)
    assert {kept.load(step).loss_from for step in kept.steps()} == {"step"}


def test_a_loop_that_changes_what_backward_is_called_on_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training, _ = plain(tmp_path / "run")
    num_steps = 0

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal num_steps
        num_steps += 1
        training.optimizer.zero_grad()
        loss = F.cross_entropy(training.model(batch[0]).flatten(0, 1), batch[1].flatten())
        (loss if num_steps < 4 else 0.3 * loss).backward()
        training.optimizer.step()
        return loss

    losses = run_on(training, train_step, batches(8))
    assert recorded(tmp_path / "run")[4:] == losses[4:]
    told = [
        message for message in caplog.messages if "the loss is the one that the step" in message
    ]
    assert len(told) == 1
    assert "from step 4 on" in told[0]


def test_backward_is_torchs_own_again_when_nobody_listens(tmp_path: Path) -> None:
    original = torch.autograd.backward
    model = Model(returns_loss=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(tmp_path / "run", model, optimizer)
    assert torch.autograd.backward is not original
    recorder.close()
    assert torch.autograd.backward is original
