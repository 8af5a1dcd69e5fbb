"""What the script has loaded is found among the digests of the run, or refused with the reason."""

from pathlib import Path

import pytest
import torch
from recorder_loops import Training, batches

from sonde.errors import SettingError
from sonde.recorder.batch_file import KeptBatches
from sonde.recorder.loaded_checkpoint import check_batches, loaded_step
from sonde.recorder.options import RecorderOptions

NO_STATES = RecorderOptions(state_every=0)


def train(folder: Path, num: int, options: RecorderOptions = NO_STATES) -> Path:
    """Train, with a checkpoint every ten steps, and return the run."""
    run = folder / "run"
    training = Training(run, settings=options)
    for number, batch in enumerate(batches(num), 1):
        training.make(batch)
        if number % 10 == 0:
            state = {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
            }
            torch.save(state, folder / f"step-{number}.pt")
    training.close()
    return run


def loaded(folder: Path, checkpoint: str, *, with_moments: bool = True) -> Training:
    """Return a training that has loaded a checkpoint, recorded elsewhere."""
    training = Training(folder / "elsewhere", settings=NO_STATES)
    saved = torch.load(folder / checkpoint, weights_only=True)
    training.model.load_state_dict(saved["model"])
    if with_moments:
        training.optimizer.load_state_dict(saved["optimizer"])
    return training


def step_of(training: Training, run: Path, before: int) -> int:
    assert training.recorder is not None
    try:
        return loaded_step(training.recorder.training, run, before)
    finally:
        training.close()


def test_a_checkpoint_is_known_by_its_weights_and_moments(tmp_path: Path) -> None:
    run = train(tmp_path, 25)
    assert step_of(loaded(tmp_path, "step-10.pt"), run, 25) == 10
    assert step_of(loaded(tmp_path, "step-20.pt"), run, 25) == 20
    fresh = Training(tmp_path / "elsewhere", settings=NO_STATES)
    assert step_of(fresh, run, 25) == 0


def test_a_checkpoint_without_its_moments_is_refused(tmp_path: Path) -> None:
    run = train(tmp_path, 25)
    with pytest.raises(SettingError) as refused:
        step_of(loaded(tmp_path, "step-20.pt", with_moments=False), run, 25)
    assert "moments" in str(refused.value.cause)


def test_a_checkpoint_after_the_step_is_refused_and_those_before_it_are_named(
    tmp_path: Path,
) -> None:
    run = train(tmp_path, 25)
    with pytest.raises(SettingError) as refused:
        step_of(loaded(tmp_path, "step-20.pt"), run, 15)
    assert "step-10.pt (after 10 steps)" in str(refused.value.hint)
    assert "step-20.pt" not in str(refused.value.hint)


def test_weights_that_the_run_does_not_know_are_refused(tmp_path: Path) -> None:
    run = train(tmp_path, 25)
    training = loaded(tmp_path, "step-20.pt")
    with torch.no_grad():
        next(training.model.parameters()).mul_(1.01)
    with pytest.raises(SettingError) as refused:
        step_of(training, run, 25)
    assert "weights" in str(refused.value.cause)
    assert "step-20.pt (after 20 steps)" in str(refused.value.hint)


def test_batches_without_states_stay_within_the_budget_and_the_oldest_go_first(
    tmp_path: Path,
) -> None:
    budget = 200_000
    options = RecorderOptions(state_every=0, max_bytes=budget)
    kept = train(tmp_path, 100, options) / "flight"
    sizes = [path.stat().st_size for path in kept.iterdir()]
    assert budget / 2 < sum(sizes) <= 1.1 * budget
    steps = KeptBatches(kept, 0).steps()
    assert steps == list(range(steps[0], 101))
    assert steps[0] > 1
    check_batches(steps, steps[0] - 1, 100)
    with pytest.raises(SettingError) as refused:
        check_batches(steps, 0, 100)
    assert "step 1 " in str(refused.value.cause)


def test_nothing_is_kept_if_neither_states_nor_batches_are_wanted(tmp_path: Path) -> None:
    run = train(tmp_path, 12, RecorderOptions(max_bytes=0))
    assert not (run / "flight").exists()
