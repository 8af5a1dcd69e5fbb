"""`sonde checkpoints`: what it shows, removes, averages, and what it exits with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.checkpoint.folder import About, CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.checkpoint.weights import load_weights
from sonde.cli.checkpoints import checkpoints
from sonde.errors import RunNotFound, SettingError
from sonde.run import Run


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    with Run(tmp_path / "run") as run:
        store = CheckpointStore(run.layout.checkpoints)
        for step in (1, 2, 3):
            weights = {"weight": torch.full((1, 2), float(step)), "bias": torch.zeros(1)}
            about = About(run_id=run.manifest.run_id, metrics={"loss": step / 2})
            store.save(step, {"model": weights}, about)
    return tmp_path / "run"


def test_it_lists_steps_sizes_and_losses(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkpoints(run_directory) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 checkpoints, ")
    assert lines[0].endswith("; the newest after step 3")
    assert lines[1].split() == ["step", "size", "loss"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3"]
    assert lines[4].split()[-1] == "1.5"


def test_verify_names_what_is_damaged_and_exits_1(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkpoints(run_directory, verify=True) == 0
    assert capsys.readouterr().out.count("verified") == 3
    (run_directory / "checkpoints" / "step-000000000002" / "tensors.safetensors").write_bytes(b"x")
    assert checkpoints(run_directory, verify=True) == 1
    assert "tensors.safetensors: 1 bytes, should be" in capsys.readouterr().out


def test_prune_keeps_the_newest(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints(run_directory, prune=1) == 0
    assert "removed: 1, 2" in capsys.readouterr().out
    assert CheckpointFolder(run_directory / "checkpoints").steps() == [3]


def test_average_saves_the_mean_of_the_newest(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checkpoints(run_directory, average=2) == 0
    model = torch.nn.Linear(2, 1)
    path = run_directory / "checkpoints" / "average-000000000002-000000000003"
    assert load_weights(path, model) == 3
    assert model.weight.tolist() == [[2.5, 2.5]]
    assert "averaged into" in capsys.readouterr().out
    assert CheckpointFolder(run_directory / "checkpoints").steps() == [1, 2, 3]


def test_json_is_one_document(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints(run_directory, json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in document["checkpoints"]] == [1, 2, 3]
    assert document["checkpoints"][0]["metrics"] == {"loss": 0.5}


@pytest.mark.parametrize("options", [{"prune": 0}, {"average": 4}, {"average": 0}])
def test_numbers_that_make_no_sense_are_refused(
    run_directory: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(SettingError, match="--"):
        checkpoints(run_directory, **options)


def test_a_place_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no checkpoints"):
        checkpoints(tmp_path)
