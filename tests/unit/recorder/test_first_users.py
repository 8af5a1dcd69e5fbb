"""What the first users of a loop of their own ran into, and no longer do."""

import logging
from pathlib import Path

import pytest
import torch
from recorder_loops import Training

from sonde.cli.main import run as sonde
from sonde.errors import RunError, SettingError
from sonde.forensics.case import open_case
from sonde.forensics.rollback import apply_rollback, plan_rollback
from sonde.forensics.trainer_seams import build_pieces
from sonde.records.host import describe_versions
from sonde.records.journal import read_steps
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import ReplayOptions
from sonde.run import Run
from sonde.spikes.spike_log import read_spikes
from sonde.train.saving import TrainerState


def test_a_checkpoint_of_ones_own_is_refused_by_name_where_a_trainers_state_is_wanted() -> None:
    model = torch.nn.Linear(1, 1)
    state = TrainerState(model, torch.optim.SGD(model.parameters(), lr=0.1), {})
    with pytest.raises(SettingError, match="it has no optimizer, ranks"):
        state.restore({"model": model.state_dict()})


def test_a_run_without_records_of_its_updates_is_not_diagnosed(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        for step in range(1, 100):
            run.spikes().observe(
                step, 9.0 if step == 90 else 2.0 + 0.01 * (step % 7), sample_ids=[("train", step)]
            )
    with pytest.raises(SettingError, match="recorded no steps"):
        open_case(tmp_path / "run", 90)


def test_the_runs_own_checkpoints_are_its_own_in_a_rollback(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        for step in range(1, 101):
            run.spikes().observe(
                step, 9.0 if step == 90 else 2.0 + 0.01 * (step % 7), sample_ids=[("train", step)]
            )
            if step % 40 == 0 or step == 95:
                run.checkpoints().save(step, {"w": torch.ones(1) * step})
        assert run.checkpoints() is run.checkpoints()
    plan = plan_rollback(tmp_path / "run", 90)
    assert (plan.checkpoint, plan.set_aside) == (80, (95,))
    assert apply_rollback(plan) is not None


def test_a_script_that_is_imported_as_a_recipe_does_not_train_into_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    Run(run, recipe="script_without_guard:pieces").close()
    (tmp_path / "script_without_guard.py").write_text(
        f"from sonde.run import Run\nRun({str(run)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match="is not opened now") as refused:
        build_pieces(read_manifest(run), ReplayOptions(recipe="script_without_guard:pieces"))
    assert "__main__" in str(refused.value.hint)
    assert read_manifest(run).num_starts == 1


def test_a_cell_that_is_run_again_takes_over_the_run_that_it_left_open(tmp_path: Path) -> None:
    first = Run(tmp_path / "run")
    second = Run(tmp_path / "run")
    first.close()
    second.logger.log(step=1, data={"loss": 1.0})
    second.close()
    assert read_manifest(tmp_path / "run").num_starts == 2


def test_a_second_start_from_the_beginning_is_an_attempt_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    Training(run).train(100, garbled=90)
    with caplog.at_level(logging.INFO, "sonde"):
        Training(run).train(30)
    assert max(read_steps(run).by_number) == 30
    assert read_spikes(run).spikes == ()
    assert max(read_steps(run / "attempts" / "1").by_number) == 100
    assert any("earlier attempt" in message for message in caplog.messages)


def test_a_start_that_goes_on_from_a_kept_state_is_no_new_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Training(run).train(30)
    training = Training(run)
    assert training.recorder is not None
    assert training.recorder.restore() == 20
    training.close()
    assert max(read_steps(run).by_number) == 30
    assert not (run / "attempts").exists()


def test_diagnose_says_at_once_what_is_missing_without_loading_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(tmp_path / "run").close()
    # importing it would fail
    monkeypatch.setitem(__import__("sys").modules, "sonde.forensics.diagnose", None)
    assert sonde(["diagnose", str(tmp_path / "run"), "--step", "3"]) == 1
    said = capsys.readouterr().err
    assert "does not say how its model and data are built" in said
    assert "Recorder" in said


def test_a_run_of_a_script_says_that_the_script_has_to_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Training(tmp_path / "run").train(3)
    assert sonde(["replay", str(tmp_path / "run"), "--step", "2"]) == 1
    said = capsys.readouterr().err
    assert "--again" in said
    assert sonde(["replay", str(tmp_path / "run"), "--step", "2", "--again"]) == 1
    assert "say --yes" in capsys.readouterr().err


def test_settings_of_the_spike_recorder_that_come_too_late_are_refused(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.spikes()
        assert run.spikes() is run.spikes()
        with pytest.raises(SettingError, match="exists already"):
            run.spikes(datasets={"train": object()})


def test_the_versions_of_the_libraries_around_training_are_noted() -> None:
    names = {"torch", "numpy", "python"}
    assert names <= describe_versions().keys()


def test_a_run_hands_out_a_probe(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.probe(task="statistics").close()
    assert (tmp_path / "run").exists()
