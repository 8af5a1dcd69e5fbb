"""CheckpointCallback: restores, saves, keeps, and none of the bugs of the one it is named after."""

import json
import logging
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny_training import Regression, events, make_trainer, weights
from torch import nn

from sonde.callbacks.base import Callback, Order
from sonde.callbacks.context import Context
from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.compat.nemo.checkpoint import CheckpointCallback
from sonde.errors import SettingError
from sonde.run import Run
from sonde.train.stopping import StopWhen


def train(
    *callbacks: Callback, updates: int, task: Regression | None = None, run: Run | None = None
) -> Regression:
    trainer, task = make_trainer(run, task=task)
    trainer.train(stop=StopWhen(max_updates=updates), callbacks=callbacks)
    return task


def steps(folder: Path) -> list[int]:
    return CheckpointFolder(folder).steps()


def damage(folder: Path, step: int) -> None:
    (Path(CheckpointFolder(folder).at(step).where) / "tensors.safetensors").write_bytes(b"torn")


def test_it_saves_by_steps_and_at_the_end_and_keeps_the_newest(tmp_path: Path) -> None:
    train(
        CheckpointCallback(tmp_path / "new" / "folder", step_freq=2, checkpoints_to_keep=3),
        updates=9,
    )
    assert steps(tmp_path / "new" / "folder") == [6, 8, 9]


def test_it_saves_to_a_url_and_restores_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"memory://{tmp_path.name}"
    train(CheckpointCallback(url, step_freq=2), updates=4)
    resumed = train(CheckpointCallback("there", url, step_freq=2, force_load=True), updates=6)
    assert (CheckpointFolder(url).steps(), steps(tmp_path / "there")) == ([2, 4], [6])
    assert weights(resumed) == weights(train(updates=6))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_it_saves_by_steps_and_by_epochs_at_once(tmp_path: Path) -> None:
    train(
        CheckpointCallback(tmp_path, step_freq=4, epoch_freq=1, checkpoints_to_keep=0), updates=13
    )
    assert steps(tmp_path) == [4, 6, 8, 12, 13]


def test_bug_epoch_zero_was_never_saved(tmp_path: Path) -> None:
    train(CheckpointCallback(tmp_path, epoch_freq=1), updates=7)
    assert steps(tmp_path) == [6, 7]


def test_bug_a_periodic_checkpoint_said_one_update_less_than_it_held(tmp_path: Path) -> None:
    train(CheckpointCallback(tmp_path, step_freq=4), updates=4)
    state = CheckpointStore(tmp_path).load(4)
    assert state["counters"]["num_updates"] == 4
    assert state["optimizer"]["state"][0]["step"].item() == 4


def test_bug_resume_repeated_an_update_or_an_epoch(tmp_path: Path) -> None:
    whole = train(updates=11)
    for updates in (4, 6, 11):
        parts = train(CheckpointCallback(tmp_path, step_freq=100), updates=updates)
    assert weights(parts) == weights(whole)


def test_bug_a_partial_epoch_was_counted_as_complete_and_its_rest_skipped(tmp_path: Path) -> None:
    train(CheckpointCallback(tmp_path, step_freq=100), updates=8)
    counters = CheckpointStore(tmp_path).load(8)["counters"]
    assert counters["num_epochs"] == 1
    trainer, _ = make_trainer()
    reason = trainer.train(
        stop=StopWhen(max_epochs=2), callbacks=[CheckpointCallback(tmp_path, step_freq=100)]
    )
    assert reason.startswith("max_epochs")
    assert steps(tmp_path) == [8, 12]


def test_bug_an_epochs_last_update_and_its_end_were_two_states(tmp_path: Path) -> None:
    train(CheckpointCallback(tmp_path, step_freq=6), updates=6)
    state = CheckpointStore(tmp_path).load(6)
    assert (state["counters"]["num_epochs"], state["data"]) == (1, {"epoch": 2, "offset": 0})


def test_bug_keep_k_was_forgotten_on_resume(tmp_path: Path) -> None:
    for updates in (4, 8, 12):
        train(CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=2), updates=updates)
        assert steps(tmp_path) == [updates - 1, updates]


@pytest.mark.parametrize("keep", [0, -1])
def test_bug_keeping_minus_one_deleted_every_checkpoint(tmp_path: Path, keep: int) -> None:
    train(CheckpointCallback(tmp_path, step_freq=1, checkpoints_to_keep=keep), updates=6)
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_bug_pruning_by_suffix_deleted_files_of_others(tmp_path: Path) -> None:
    with Run(tmp_path / "other") as run:
        train(
            CheckpointCallback(tmp_path / "shared", step_freq=1, checkpoints_to_keep=0),
            updates=2,
            run=run,
        )
    (tmp_path / "shared" / "trainer-STEP-3.pt").write_text("mine")
    with Run(tmp_path / "this") as run:
        train(
            CheckpointCallback(tmp_path / "shared", step_freq=1, checkpoints_to_keep=1),
            updates=6,
            run=run,
        )
    assert steps(tmp_path / "shared") == [1, 2, 6]
    assert (tmp_path / "shared" / "trainer-STEP-3.pt").exists()


def test_bug_the_two_frequencies_at_minus_one_said_nothing_and_saved_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(CheckpointCallback(tmp_path, step_freq=1), updates=3)
    before = steps(tmp_path)
    train(CheckpointCallback(tmp_path), updates=5)
    assert steps(tmp_path) == before
    assert "only restores" in caplog.text


def test_bug_force_load_with_nothing_to_load_is_refused_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds none"):
        train(CheckpointCallback(tmp_path / "empty", step_freq=1, force_load=True), updates=1)
    train(CheckpointCallback(tmp_path / "bad", step_freq=1), updates=1)
    damage(tmp_path / "bad", 1)
    with pytest.raises(
        SettingError, match=r"step-000000000001: tensors\.safetensors: 4 bytes, should be"
    ):
        train(CheckpointCallback(tmp_path / "bad", step_freq=1, force_load=True), updates=2)


def test_bug_a_truncated_newest_file_meant_random_weights_from_step_0(tmp_path: Path) -> None:
    train(CheckpointCallback(tmp_path, step_freq=1), updates=3)
    damage(tmp_path, 3)
    resumed = train(CheckpointCallback(tmp_path, step_freq=1, force_load=True), updates=5)
    assert weights(resumed) == weights(train(updates=5))


def test_without_force_load_nothing_to_restore_is_said_and_training_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(CheckpointCallback(tmp_path / "x", step_freq=5), updates=1)
    assert re.search(r"training starts from scratch: .* holds none", caplog.text)


def test_bug_a_model_that_does_not_fit_was_half_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(CheckpointCallback(tmp_path, step_freq=1), updates=1)
    task = Regression()
    task.model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(3, 1))
    before = weights(task)
    with pytest.raises(
        SettingError, match=r"2\.weight is \[1, 8\] .* in the checkpoint, \[1, 3\] .* in the model"
    ):
        train(CheckpointCallback(tmp_path, step_freq=1, force_load=True), updates=1, task=task)
    assert weights(task) == before
    train(CheckpointCallback(tmp_path), updates=1, task=task)
    assert "training starts from scratch" in caplog.text
    assert "do not fit" in caplog.text


def test_bug_a_module_whose_name_begins_with_anothers_took_its_file(tmp_path: Path) -> None:
    task = Regression()
    task.model = nn.ModuleDict({"net": nn.Linear(4, 1), "net_o": nn.Linear(4, 1)})
    task.compute = Two(task.model).compute  # type: ignore[method-assign]  # replaced for this test
    train(CheckpointCallback(tmp_path, step_freq=1), updates=2, task=task)
    saved = CheckpointStore(tmp_path).load(2)["model"]
    assert set(saved) == {"net.weight", "net.bias", "net_o.weight", "net_o.bias"}
    assert not torch.equal(saved["net.weight"], saved["net_o.weight"])


class Two:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def compute(self, batch: torch.Tensor) -> Any:
        from sonde.train.task import StepOutput

        # a ModuleDict in this test
        loss = (
            self.model["net"](batch).square().sum()  # type: ignore[index]
            + (self.model["net_o"](batch) - 1).square().sum()  # type: ignore[index]
        )
        return StepOutput(loss_sum=loss, weight=len(batch))


def test_bug_a_frozen_module_was_neither_saved_nor_restored(tmp_path: Path) -> None:
    task = Regression()
    task.model[0].requires_grad_(False)  # type: ignore[index]  # a Sequential in this test
    train(CheckpointCallback(tmp_path, step_freq=1), updates=1, task=task)
    assert "0.weight" in CheckpointStore(tmp_path).load(1)["model"]


def test_load_from_folder_is_where_the_first_start_comes_from_and_a_restart_goes_on_from_its_own(
    tmp_path: Path,
) -> None:
    train(CheckpointCallback(tmp_path / "old", step_freq=1), updates=4)
    for updates in (6, 7):
        with Run(tmp_path / "run") as run:
            callback = CheckpointCallback(
                tmp_path / "new", load_from_folder=tmp_path / "old", step_freq=1
            )
            train(callback, updates=updates, run=run)
    assert steps(tmp_path / "new") == [5, 6, 7]
    assert [event["step"] for event in events(tmp_path / "run", "resume")] == [4, 6]


class Judging(Callback):
    """Gives each evaluation a value of its own."""

    order: ClassVar[Order] = Order.EVALUATE

    def on_step_end(self, context: Context) -> None:
        context.ask_to_evaluate()

    def on_evaluation_end(self, context: Context) -> None:
        context.add_metrics({"score": float([0, 5, 9, 3, 4, 1, 2][context.step])})


def test_the_best_by_a_metric_stays_beside_the_newest(tmp_path: Path) -> None:
    callback = CheckpointCallback(
        tmp_path, step_freq=1, checkpoints_to_keep=2, metric="score", mode="max"
    )
    train(callback, Judging(), updates=6)
    assert steps(tmp_path) == [2, 5, 6]


def test_two_of_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="use one CheckpointCallback"):
        train(
            CheckpointCallback(tmp_path / "a", step_freq=1),
            CheckpointCallback(tmp_path / "b"),
            updates=1,
        )


@pytest.mark.parametrize("value", [0, -2, 1.5])
def test_a_frequency_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SettingError, match="step_freq"):
        CheckpointCallback(tmp_path, step_freq=value)


def test_nemos_scripts_find_checkpoint_dir_and_what_was_saved_there(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        trainer, _ = make_trainer(run)
        assert trainer.checkpoint_dir == str(tmp_path / "run" / "checkpoints")
        saver = CheckpointCallback(folder=trainer.checkpoint_dir, step_freq=2)
        trainer.train(stop=StopWhen(max_updates=5), callbacks=[saver])
    assert steps(tmp_path / "run" / "checkpoints") == [2, 4, 5]


def test_without_a_run_there_is_no_checkpoint_dir_and_the_callback_says_so() -> None:
    trainer, _ = make_trainer()
    assert trainer.checkpoint_dir is None
    with pytest.raises(SettingError, match="folder is None"):
        CheckpointCallback(folder=trainer.checkpoint_dir, step_freq=2)


def test_with_the_runs_own_folder_there_is_one_store(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        trainer, _ = make_trainer(run, save_every_updates=1)
        callback = CheckpointCallback(run.checkpoint_place, step_freq=3)
        trainer.train(stop=StopWhen(max_updates=7), callbacks=[callback])
    assert steps(tmp_path / "checkpoints") == [3, 6, 7]
    state = json.loads((tmp_path / "checkpoints" / "step-000000000007" / "state.json").read_bytes())
    assert state["run_id"] == run.manifest.run_id


def test_a_print_func_that_logs_is_seen_where_logging_was_never_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    train(Saying(), updates=1)
    assert "INFO I say" in capsys.readouterr().err
    assert root.handlers == []
    assert root.level == logging.WARNING


class Saying(Callback):
    def on_step_end(self, context: Context) -> None:
        logging.info("I say")  # noqa: LOG015  as users do
