"""Ordinary mistakes of a first hour: the answer has the cause, and a hint to what was meant."""

from pathlib import Path

import pytest
import torch

import sonde
from sonde.cli.main import run
from sonde.errors import SettingError


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A run with an event at step 300."""
    place = tmp_path / "runs" / "first"
    with sonde.Run(place) as opened:
        for step in range(1, 321):
            loss = 9.0 if step == 300 else 3.0 + 0.01 * (step % 7)
            opened.spikes().observe(step, loss)
    return place


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert run([str(word) for word in words]) != 0
    return " ".join(capsys.readouterr().err.split())


def test_a_misspelt_run_names_the_one_beside_it(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(capsys, "show", first.with_name("frist"))
    assert "does not exist" in told
    assert "did you mean" in told
    assert "first" in told.partition("did you mean")[2]


def test_a_file_in_place_of_a_folder_names_the_folder(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "give the directory of the run:" in said(capsys, "show", first / "run.json")
    script = first.parent / "train.py"
    script.write_text("")
    assert "`sonde why FILE` reads a log" in said(capsys, "show", script)


def test_a_folder_without_a_run_says_what_is_missing(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(capsys, "show", first.parent)
    assert "run.json does not exist" in told
    assert "`sonde runs DIR` lists" in told


def test_a_step_without_a_spike_names_those_that_have_one(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "spikes were recorded at step 300" in said(capsys, "spikes", first, "--step", "9999")


def test_a_wrong_flag_leads_to_the_help_of_its_verb(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "`sonde help rollback` has examples" in said(capsys, "rollback", first)
    assert "sonde sync needs PLACE" in said(capsys, "sync", first)
    assert "Did you mean --all?" in said(capsys, "show", first, "--al")
    assert 'Did you mean "diagnose"?' in said(capsys, "diagnos", first)


def test_a_misspelt_argument_of_the_recorder_names_the_right_one(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SettingError, match="did you mean 'decode'"):
        sonde.Recorder(tmp_path / "run", model, optimizer, decoder=str)  # type: ignore[arg-type]


def test_without_decode_a_row_says_how_to_get_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    with sonde.Run(place) as opened:
        for step in range(1, 321):
            loss = 9.0 if step == 300 else 3.0 + 0.01 * (step % 7)
            rows = [("content", step * 2), ("content", step * 2 + 1)]
            opened.spikes().observe(
                step, loss, sample_ids=rows, sample_losses=torch.tensor([loss, loss])
            )
    assert run(["spikes", str(place)]) == 0
    assert "no text: with decode=, sonde keeps the text" in capsys.readouterr().out
