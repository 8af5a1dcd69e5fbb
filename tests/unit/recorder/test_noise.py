"""A loss that jumps for no visible reason is recorded, and told only if it is more than noise."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sonde.forensics.scene_evidence import SceneEvidence
from sonde.recorder.recorder import Recorder
from sonde.recorder.untold import UntoldEvents
from sonde.recorder.update import Update
from sonde.spikes.detectors import Event, Score
from sonde.spikes.spike_log import read_spikes

NUM_STEPS = 120
ODD_STEP = 100


def told_steps(
    run: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    num_rows: int,
    factor: float,
    first_factor: float = 1.0,
    num_odd: int = 1,
) -> list[str]:
    """Train a model whose loss is about 1, and larger by a factor at its first step. At an odd
    step, and perhaps some after it, the batch has so many rows, and its loss is larger by another
    factor. Return what is said of these steps.
    """
    torch.manual_seed(2)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    noise = torch.Generator().manual_seed(3)

    with Recorder(run, model, optimizer) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = ((model(batch[0]) - batch[1]) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        for step in range(1, NUM_STEPS + 1):
            is_odd = ODD_STEP <= step < ODD_STEP + num_odd
            size = num_rows if is_odd else 16
            scale = first_factor**0.5 if step == 1 else 1.0
            if is_odd:
                scale = factor**0.5
            inputs = torch.randn(size, 6, generator=noise)
            errors = scale + 0.05 * torch.randn(size, 1, generator=noise)
            recorder.step(train_step, (inputs, model(inputs).detach() + errors))
    assert ODD_STEP in [spike.event.first_step for spike in read_spikes(run).spikes]
    odd_steps = range(ODD_STEP, ODD_STEP + num_odd)
    begins = tuple(f"step {step}:" for step in odd_steps)
    return [message for message in caplog.messages if message.startswith(begins)]


def test_a_loss_that_the_run_never_had_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert told_steps(tmp_path / "run", caplog, num_rows=16, factor=3.0)


def test_one_batch_with_a_loss_that_the_run_has_had_is_only_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not told_steps(tmp_path / "run", caplog, num_rows=16, factor=3.0, first_factor=5.0)


def test_a_loss_that_stays_high_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = told_steps(
        tmp_path / "run", caplog, num_rows=16, factor=3.0, first_factor=5.0, num_odd=12
    )
    assert len(told) == 1
    assert told[0].startswith(f"step {ODD_STEP + 5}:")


def test_a_much_smaller_batch_is_only_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not told_steps(tmp_path / "run", caplog, num_rows=3, factor=3.0)


def test_a_loss_that_rises_by_little_is_only_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not told_steps(tmp_path / "run", caplog, num_rows=16, factor=1.2)


@pytest.mark.parametrize(("usual_loss", "may_pass"), [(-0.06, True), (0.06, False)])
def test_an_objective_that_has_been_negative_may_jump(usual_loss: float, may_pass: bool) -> None:
    events = UntoldEvents()
    events.note(1, 0.5, is_high=False)
    recent = []
    for step in range(2, 10):
        update = Update(step, had_gradients=False)
        update.loss = usual_loss
        recent.append(update)
    jump = Event.beginning("loss", 10, 0.3, Score("spike", usual_loss, 20.0))
    scene = SceneEvidence(step=10)
    assert events.may_pass(jump, scene, Update(10, had_gradients=False), recent) is may_pass
    assert events.may_stay(Update(10, had_gradients=False), recent) is may_pass


def test_a_loss_of_players_may_stay_high() -> None:
    update = Update(10, had_gradients=False)
    assert not UntoldEvents().may_stay(update, [])
    update.has_other_moved = True
    assert UntoldEvents().may_stay(update, [])


@pytest.mark.parametrize("loss", [1.05, 1.5])
def test_a_norm_that_jumps_is_told_if_the_loss_is_high_too(loss: float) -> None:
    events = UntoldEvents()
    recent = []
    for step in range(1, 17):
        update = Update(step, had_gradients=False)
        update.loss = 1.0 + 0.1 * (step % 2)
        recent.append(update)
        events.note(step, update.loss, is_high=False)
    jumped = Update(17, had_gradients=False)
    jumped.loss = loss
    event = Event.beginning("grad_norm", 17, 5.8, Score("spike", 0.35, 9.0))
    may_pass = events.may_pass(event, SceneEvidence(step=17), jumped, recent)
    assert may_pass is (loss < 1.1)
