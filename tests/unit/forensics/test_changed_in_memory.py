"""Weights that something other than the optimizer changed between two steps of a loop."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorder_loops import Training, batches

from sonde.forensics.diagnose import diagnose
from sonde.forensics.verdict import Verdict
from sonde.recorder.options import RecorderOptions
from sonde.recorder.takeover import seams_of
from sonde.records.journal import read_steps
from sonde.spikes.spike_log import read_spikes

CHANGED_AFTER = 110


def scale(training: Training) -> None:
    training.model.get_parameter("head.weight").mul_(4)


def add_noise(training: Training) -> None:
    weight = training.model.get_parameter("head.weight")
    generator = torch.Generator().manual_seed(4)
    weight.add_(0.2 * torch.randn(weight.shape, generator=generator))


def nothing(training: Training) -> None:
    del training


def verdict_after(change: Callable[[Training], None], run: Path) -> Verdict | None:
    """Train, change the weights between two steps, and diagnose the first event after that."""
    training = Training(run, settings=RecorderOptions(state_every=40))
    assert training.recorder is not None
    torch.manual_seed(5)
    for number, batch in enumerate(batches(150), 1):
        training.make(batch)
        if number == CHANGED_AFTER:
            with torch.no_grad():
                change(training)
    training.close()
    steps = [spike.event.first_step for spike in read_spikes(run).spikes]
    if not steps:
        return None
    shadow = Training(run.with_name("shadow"))
    assert shadow.recorder is not None
    parts = shadow.recorder.training
    parts.store.folder = training.recorder.training.store.folder
    parts.run = training.recorder.run
    records = read_steps(run).by_number
    seams = seams_of(parts, shadow.train_step, next(batches(1)), records)
    verdict = diagnose(run, steps[0], seams=seams)
    shadow.close()
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("change", [scale, add_noise])
def test_the_tensor_that_was_changed_is_named(
    tmp_path: Path, change: Callable[[Training], None]
) -> None:
    verdict = verdict_after(change, tmp_path / "run")
    assert verdict is not None
    assert verdict.step == CHANGED_AFTER + 1
    first = verdict.causes[0]
    assert (first.cause, first.module) == ("corrupted_weights", "head.weight")
    assert first.confidence >= 0.9


def test_without_a_change_nothing_happens(tmp_path: Path) -> None:
    assert verdict_after(nothing, tmp_path / "run") is None


def test_the_state_before_an_event_and_the_one_before_that_outlive_the_regular_ones(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path / "run", settings=RecorderOptions(state_every=30, keep_states=1))
    assert training.recorder is not None
    for number, batch in enumerate(batches(160, garbled=95), 1):
        training.make(batch)
        if number % 30 == 1:
            training.recorder.flush()
    training.close()
    assert training.recorder.training.steps() == [90, 94, 150]
