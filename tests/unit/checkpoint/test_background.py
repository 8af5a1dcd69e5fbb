"""Saving in the background: never a later value, never a lost failure, never more than one at a
time.
"""

import errno
import shutil
from pathlib import Path

import pytest
import torch
from fault_injection import failing, faults_of
from tiny_training import events, make_trainer

from sonde.checkpoint.folder import About, Keep
from sonde.checkpoint.store import BackgroundSaver, CheckpointStore
from sonde.errors import SettingError, SondeError
from sonde.run import Run
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen


def test_what_is_changed_after_the_call_is_not_in_the_file(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saver = BackgroundSaver(store, Keep())
    tensors = {str(number): torch.zeros(100_000) for number in range(20)}
    for step in range(1, 6):
        for tensor in tensors.values():
            tensor.fill_(step)
        saver.save(step, {"model": tensors}, About())
        for tensor in tensors.values():
            tensor.fill_(-1)
    saver.wait()
    assert [outcome.error for outcome in saver.finished()] == [None] * 5
    assert store.folder.steps() == [2, 3, 4, 5]
    for step in store.folder.steps():
        assert all(bool((tensor == step).all()) for tensor in store.load(step)["model"].values())


def test_memory_is_allocated_once(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.snapshot(1, {"a": torch.zeros(1000), "b": torch.zeros(3, dtype=torch.int8)})
    pointer = store._tensors._memory.data_ptr()
    store.snapshot(2, {"a": torch.ones(1000), "b": torch.zeros(3, dtype=torch.int8)})
    store.snapshot(3, {"a": torch.ones(10)})
    assert store._tensors._memory.data_ptr() == pointer


def test_a_failure_is_told_at_the_next_question_and_the_next_save_works(tmp_path: Path) -> None:
    saver = BackgroundSaver(CheckpointStore(tmp_path), Keep())
    with faults_of("write", failing(errno.ENOSPC)):
        saver.save(1, {"a": torch.ones(3)}, About())
        saver.wait()
    (outcome,) = saver.finished()
    assert outcome.error is not None
    assert "No space left on device" in outcome.error
    saver.save(2, {"a": torch.ones(3)}, About())
    saver.wait()
    assert [save.error for save in saver.finished()] == [None]
    assert CheckpointStore(tmp_path).folder.steps() == [2]


def test_free_space_is_checked_before_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearly_full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: nearly_full)
    saver = BackgroundSaver(CheckpointStore(tmp_path), Keep())
    saver.save(1, {"a": torch.ones(3000)}, About())
    (outcome,) = saver.finished()
    assert outcome.error is not None
    assert "no room for a checkpoint" in outcome.error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_ends_the_run_at_the_next_boundary_with_its_cause(tmp_path: Path) -> None:
    with Run(tmp_path) as run, faults_of("mkdir", failing(errno.EIO)):
        trainer, _ = make_trainer(run, save_every_updates=2)
        with pytest.raises(SondeError, match=r"after 2 steps was not saved: .*Input/output error"):
            trainer.train(stop=StopWhen(max_updates=50))
    (failed,) = events(tmp_path, "checkpoint_failed")
    assert failed["step"] == 2


def test_a_failed_save_is_recorded_and_training_goes_on_if_so_chosen(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        trainer, _ = make_trainer(run, save_every_updates=2, on_save_error="record")
        (tmp_path / "checkpoints").write_text("in the way")
        assert trainer.train(stop=StopWhen(max_updates=5)).startswith("max_updates")
    assert [event["step"] for event in events(tmp_path, "checkpoint_failed")] == [2, 4, 5]


def test_another_choice_is_refused() -> None:
    with pytest.raises(SettingError, match="on_save_error"):
        TrainerSettings(on_save_error="ignore")  # type: ignore[arg-type]  # wrong on purpose
