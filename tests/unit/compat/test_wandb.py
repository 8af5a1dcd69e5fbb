"""WandbCallback with the real wandb, offline: what it sent is read back from the files it left."""

import argparse
import builtins
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_training import make_trainer
from wandb_file import wandb_records

from sonde.callbacks.base import Callback
from sonde.compat.nemo.evaluator import EvaluatorCallback
from sonde.compat.nemo.wandb import WandbCallback
from sonde.errors import SettingError
from sonde.run import Run
from sonde.train.stopping import StopWhen

wandb = pytest.importorskip("wandb")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    wandb.teardown()


def sent(folder: Path) -> list[dict[str, Any]]:
    """The history and config records of every offline run below a folder, oldest first."""
    from wandb.proto import wandb_internal_pb2

    found: list[dict[str, Any]] = []
    for path in sorted(
        folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime
    ):
        for data in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                items = {
                    (item.key or "/".join(item.nested_key)): item.value_json
                    for item in record.history.item
                }
                found.append({name: json.loads(value) for name, value in items.items()})
            elif kind == "config":
                found.append(
                    {"config": {item.key: item.value_json for item in record.config.update}}
                )
            elif kind == "run":
                found.append(
                    {
                        "id": record.run.run_id,
                        "project": record.run.project,
                        "name": record.run.display_name,
                    }
                )
    return found


def train(run: Run | None, *callbacks: Callback, updates: int = 8) -> str:
    return make_trainer(run)[0].train(stop=StopWhen(max_updates=updates), callbacks=callbacks)


@pytest.mark.slow
def test_losses_hyper_parameters_and_evaluations_are_in_one_run_that_a_resume_goes_on_with(
    offline: Path,
) -> None:
    for updates in (4, 8):
        with Run(offline / "run") as run:
            callback = WandbCallback(
                ["loss", "mean"], "name", "project", argparse.Namespace(width=3), update_freq=2
            )
            evaluator = EvaluatorCallback(
                ["loss"],
                lambda _values, _kept: None,
                lambda _: {"score": 1.5},
                eval_step=4,
                wandb_project="project",
            )
            train(run, evaluator, callback, updates=updates)
            run_id = run.manifest.run_id
    records = sent(offline)
    runs = [record for record in records if "id" in record]
    assert len({record["id"] for record in runs}) == 1
    assert runs[0]["project"] == "project"
    assert all(letter.isalnum() or letter in "-_" for letter in runs[0]["id"])
    assert runs[0]["id"][:8] == run_id[:8]
    losses = [record["step"] for record in records if "loss" in record and "LR" in record]
    assert losses == [1, 2, 4, 6, 8]
    assert [record["step"] for record in records if "score" in record] == [0, 4, 8]
    assert any("width" in record.get("config", {}) for record in records)
    assert any("epoch_time" in record for record in records)


@pytest.mark.slow
def test_bug_a_run_that_the_evaluator_started_was_not_finished_when_training_failed(
    offline: Path,
) -> None:
    def fail(_values: object, _kept: object) -> None:
        assert wandb.run is not None
        raise KeyboardInterrupt

    evaluator = EvaluatorCallback(["loss"], fail, lambda _: {}, wandb_project="project")
    with pytest.raises(KeyboardInterrupt):
        train(None, evaluator)
    assert wandb.run is None


def test_a_missing_wandb_never_stops_training(
    offline: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "wandb":
            raise ImportError("no wandb here")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    assert train(None, WandbCallback(["loss"])).startswith("max_updates")
    assert caplog.text.count("nothing more is sent to W&B: ImportError: no wandb here") == 1


def test_a_failing_wandb_never_stops_training(
    offline: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        id = "x"

        def log(self, values: dict[str, Any]) -> None:
            raise OSError("no network")

    monkeypatch.setattr(wandb, "run", Broken())
    assert train(None, WandbCallback(["loss"], update_freq=1)).startswith("max_updates")
    assert caplog.text.count("no network") == 1


@pytest.mark.parametrize("update_freq", [0, -1])
def test_bug_an_update_freq_of_zero_divided_by_zero_and_a_negative_one_never_logged(
    update_freq: int,
) -> None:
    with pytest.raises(SettingError, match="update_freq"):
        WandbCallback(update_freq=update_freq)
