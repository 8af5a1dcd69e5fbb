"""Training meets missing checkpoints, empty data, foreign tokens, other types and shapes, and
losses that are not finite.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_group import run_ranks
from small_corpus import TINY, prepare_corpus
from tiny_training import Regression, make_trainer

from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.cli.main import run
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.skip_list import SkipList
from sonde.data.token_file import read_sidecar, stamp_file, write_sidecar
from sonde.errors import RunError, SettingError, SondeError
from sonde.forensics.rollback import apply_rollback, plan_way_back
from sonde.run import Run
from sonde.train.stopping import StopWhen

SIZES = [word for name, size in TINY.items() for word in (f"--{name.replace('_', '-')}", str(size))]
QUICK = [*SIZES, "--max-tokens", "64", "--warmup", "2", "--log-interval", "2", "--output", "tcap"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


def _events(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (directory / "records" / "events.rank0.jsonl").read_text().splitlines()
    ]


def _train(directory: Path, num_updates: int, **options: Any) -> None:
    with Run(directory) as opened:
        make_trainer(opened, save_every_updates=3)[0].train(
            stop=StopWhen(max_updates=num_updates), **options
        )


@pytest.mark.fault(19, 29)
@pytest.mark.parametrize("loss", ["folder gone", "all damaged"])
def test_a_run_whose_checkpoints_are_lost_does_not_start_over_by_itself(
    tmp_path: Path, loss: str
) -> None:
    _train(tmp_path, 6)
    if loss == "folder gone":
        (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    else:
        for path in (tmp_path / "checkpoints").glob("*/state.json"):
            path.write_bytes(path.read_bytes()[:-9])
    steps = (tmp_path / "records" / "steps.rank0.jsonl").read_bytes()
    with pytest.raises(RunError, match="the last after 6 steps, and none can be used") as caught:
        _train(tmp_path, 9)
    assert "--start-over" in str(caught.value.hint)
    assert (tmp_path / "records" / "steps.rank0.jsonl").read_bytes() == steps
    _train(tmp_path, 3, start_over=True)
    assert CheckpointFolder(tmp_path / "checkpoints").newest()[0] == 3


@pytest.mark.fault(5)
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    with Run(tmp_path) as opened:
        opened.records("steps").append(
            {"type": "STEP", "step": 1, "epoch": 1, "loss": 1.0, "weight": 1.0, "lr": 0.1}
        )
    _train(tmp_path, 3)
    assert CheckpointFolder(tmp_path / "checkpoints").newest()[0] == 3


@pytest.mark.fault(30)
def test_a_folder_of_checkpoints_that_leads_out_of_the_run_is_refused(tmp_path: Path) -> None:
    _train(tmp_path / "run", 3)
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "scratch")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "scratch")
    with pytest.raises(RunError, match="is a link") as caught:
        _train(tmp_path / "run", 6)
    assert f"--checkpoints {tmp_path / 'scratch'}" in str(caught.value.hint)


def test_checkpoints_outside_of_the_run_are_given_to_training_and_found_by_readers(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    scratch = tmp_path / "scratch"
    moved = tmp_path / "moved"
    words = [
        "train",
        str(corpus),
        "--run",
        str(directory),
        *QUICK,
        "--save-every-updates",
        "2",
        "--checkpoints",
    ]
    assert run([*words, str(scratch), "--max-updates", "4"]) == 0
    assert CheckpointFolder(scratch).steps() == [2, 4]
    assert not (directory / "checkpoints").exists()
    assert run(["replay", str(directory), "--step", "3"]) == 0  # found by what the run says
    # a manifest alone sends no writer out of the run
    assert run([*words[:-1], "--max-updates", "6"]) == 1
    assert f"--checkpoints {scratch}" in capsys.readouterr().err
    scratch.rename(moved)
    # the disk is elsewhere: nothing starts over
    assert run([*words, str(scratch), "--max-updates", "6"]) == 1
    assert "name the folder they are in now with --checkpoints" in capsys.readouterr().err
    assert run(["replay", str(directory), "--step", "3", "--checkpoints", str(moved)]) == 0
    assert run([*words, str(moved), "--max-updates", "6"]) == 0
    capsys.readouterr()
    for verb in (["checkpoints"], ["checkpoints", "--checkpoints", str(moved)]):
        assert run([verb[0], str(directory), *verb[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["checkpoints"][-1]["path"] == str(
            moved / "step-000000000006"
        )


def test_what_changes_checkpoints_outside_of_the_run_must_be_told_where(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    scratch = tmp_path / "scratch"
    words = [
        "train",
        str(corpus),
        "--run",
        str(directory),
        *QUICK,
        "--save-every-updates",
        "2",
        "--max-updates",
        "6",
    ]
    assert run([*words, "--checkpoints", str(scratch)]) == 0
    saved = CheckpointFolder(scratch).steps()
    capsys.readouterr()
    assert run(["checkpoints", str(directory), "--prune", "1"]) == 1
    assert f"--checkpoints {scratch}" in capsys.readouterr().err
    with pytest.raises(RunError, match="are outside of it"):
        apply_rollback(plan_way_back(directory, 5, SkipList(), "a test"))
    assert CheckpointFolder(scratch).steps() == saved
    assert run(["checkpoints", str(directory), "--prune", "1", "--checkpoints", str(scratch)]) == 0
    assert CheckpointFolder(scratch).steps() == [6]
    plan = plan_way_back(directory, 5, SkipList(), "a test", checkpoints=str(scratch))
    assert apply_rollback(plan) is not None
    assert CheckpointFolder(scratch).steps() == []


@pytest.mark.fault(41)
@pytest.mark.timeout(60)
def test_data_without_batches_ends_the_run_at_once(tmp_path: Path) -> None:
    class Nothing:
        def __iter__(self) -> Any:
            return iter(())

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            pass

    trainer, _ = make_trainer()
    trainer.data = Nothing()
    with pytest.raises(SettingError, match="no batches"):
        trainer.train(stop=StopWhen(max_updates=5))


@pytest.mark.fault(41)
@pytest.mark.timeout(60)
def test_an_empty_corpus_and_a_skip_list_that_covers_everything_are_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("e.en", "e.de"):
        (tmp_path / name).write_text("")
    prepare(
        PrepareSettings(
            splits={"train": {"en": tmp_path / "e.en", "de": tmp_path / "e.de"}},
            out=tmp_path / "empty",
            tokenizer=str(corpus / "dict.txt"),
            vocab_size=None,
        )
    )
    assert (
        run(
            [
                "train",
                str(tmp_path / "empty"),
                "--run",
                str(tmp_path / "a"),
                *QUICK,
                "--max-updates",
                "2",
            ]
        )
        == 1
    )
    assert "there is nothing to train on" in capsys.readouterr().err
    (tmp_path / "skip.txt").write_text("train 0-47\n")
    skip = ["--skip-list", str(tmp_path / "skip.txt")]
    assert (
        run(
            [
                "train",
                str(corpus),
                "--run",
                str(tmp_path / "b"),
                *QUICK,
                *skip,
                "--max-updates",
                "2",
            ]
        )
        == 1
    )
    assert "leaves out all 48 samples" in capsys.readouterr().err


@pytest.mark.fault(17, 42)
def test_training_refuses_data_that_changed_and_tokens_that_the_vocabulary_has_not(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(corpus, tmp_path / "data"))
    tokens = np.fromfile(data / "train.de.bin", "<u2")
    tokens[17] = 60000
    tokens.tofile(data / "train.de.bin")
    assert (
        run(["train", str(data), "--run", str(tmp_path / "a"), *QUICK, "--max-updates", "2"]) == 1
    )
    assert "train.de.bin is stale" in capsys.readouterr().err
    sidecar = read_sidecar(data / "train.de")  # as if it had been made so, with another vocabulary
    assert sidecar is not None
    write_sidecar(data / "train.de", _with_stamp(sidecar, data))
    assert (
        run(["train", str(data), "--run", str(tmp_path / "a"), *QUICK, "--max-updates", "2"]) == 1
    )
    assert "has token 60000, and the vocabulary has" in capsys.readouterr().err
    assert run(["inspect", str(data), "--verify"]) == 1
    assert "has token 60000" in capsys.readouterr().err


def _with_stamp(sidecar: Any, data: Path) -> Any:
    import dataclasses

    return dataclasses.replace(sidecar, bin=stamp_file(data / "train.de.bin"))


@pytest.mark.fault(44)
def test_a_checkpoint_with_other_types_is_refused(tmp_path: Path) -> None:
    _train(tmp_path, 3)
    store = CheckpointStore(tmp_path / "checkpoints")
    state = store.load(3)
    state["model"] = {name: tensor.half() for name, tensor in state["model"].items()}
    store.save(3, state)
    with pytest.raises(SettingError, match="do not fit the model") as caught:
        _train(tmp_path, 6)
    assert "float16" in str(caught.value.cause)


@pytest.mark.fault(34)
def test_losses_that_are_never_finite_are_told_and_distrusted_and_may_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Regression(spoil=lambda batch: batch * math.nan)
    with Run(tmp_path / "on") as opened:
        trainer, _ = make_trainer(opened, task=task, save_every_updates=6)
        trainer.train(stop=StopWhen(max_updates=12))
    assert "has not been finite for 10 steps" in caplog.text
    about = CheckpointFolder(tmp_path / "on" / "checkpoints").document(12)
    assert about["distrusted"] == "the last 12 losses are not finite"
    assert "not_finite" in {event["event"] for event in _events(tmp_path / "on")}
    with Run(tmp_path / "off") as opened:
        trainer, _ = make_trainer(opened, task=task, max_nonfinite_updates=4)
        assert trainer.train(stop=StopWhen(max_updates=12)) == (
            "max_nonfinite_updates: 4 losses in a row are not finite"
        )


@pytest.mark.fault(12)
def test_ranks_whose_models_differ_in_shape_are_refused_before_they_exchange_anything() -> None:
    def work(rank: int) -> str:
        task = Regression()
        if rank:
            task.model = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Linear(9, 1))
        trainer, _ = make_trainer(rank=rank, world_size=2, task=task)
        try:
            trainer.train(stop=StopWhen(max_updates=2))
        except SondeError as error:
            return f"{error}"
        return "trained"

    for told in run_ranks(2, work):
        assert "the ranks were not started alike: they differ in model" in told


@pytest.mark.fault(7)
@pytest.mark.slow
def test_a_terminal_that_goes_away_is_a_request_to_stop(corpus: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sonde",
        "train",
        str(corpus),
        "--run",
        str(tmp_path / "run"),
        *QUICK,
    ]
    process = subprocess.Popen(
        [*command, "--max-updates", "1000000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()  # the first line is said before training begins
    os.kill(process.pid, signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 129
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["status"] == "interrupted"
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").newest()[0] is not None


@pytest.mark.fault(43)
@pytest.mark.slow
def test_data_that_is_cut_while_it_is_mapped_ends_with_words(corpus: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(corpus, tmp_path / "data"))
    command = [
        sys.executable,
        "-m",
        "sonde",
        "train",
        str(data),
        "--run",
        str(tmp_path / "run"),
        *QUICK,
    ]
    command += ["--max-updates", "1000000", "--verify-data", "--num-workers", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()  # the first line is said before training begins
    os.truncate(data / "train.de.bin", 0)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGBUS
    assert "Bus error" in said
    assert "/sonde/" in said  # the stack shows what was being read
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "train.de.bin is truncated" in again.stderr or "train.de" in again.stderr
