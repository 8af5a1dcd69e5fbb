"""The series of a run by name, with restarts, damage and missing files."""

from pathlib import Path

import numpy as np
import pytest
from eventful_run import BACK_TO, NUM_STEPS, SPIKE_STEP

from sonde.errors import SettingError
from sonde.report.run_curves import RunCurves
from sonde.run import Run


@pytest.fixture(scope="module")
def curves(eventful_run: Path) -> RunCurves:
    return RunCurves(eventful_run)


def test_every_update_comes_once_and_the_last_start_counts(curves: RunCurves) -> None:
    loss = curves.read("loss")
    assert loss.steps.tolist() == list(range(1, NUM_STEPS + 1))
    assert np.nanmax(loss.values[SPIKE_STEP - 5 :]) < 3
    assert np.isnan(loss.values[349])


def test_what_a_restart_took_back_is_at_hand(curves: RunCurves) -> None:
    (replaced,) = curves.superseded("loss")
    assert replaced.steps.tolist() == list(range(BACK_TO + 1, SPIKE_STEP + 11))
    assert replaced.values.max() == 9.25
    assert curves.superseded("train.loss") == []


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("loss", "loss"),
        ("train.loss", "train.loss"),
        ("ips", "train.ips"),
        ("lr", "lr"),
        ("fp_time", "train.fp_time"),
    ],
)
def test_a_name_is_found_by_its_end(curves: RunCurves, asked: str, meant: str) -> None:
    assert curves.find(asked) == meant


def test_an_unknown_name_is_refused_with_the_nearest(curves: RunCurves) -> None:
    with pytest.raises(
        SettingError, match=r"no values called gradnorm\nhint: did you mean 'grad_norm'\?"
    ):
        curves.find("gradnorm")
    with pytest.raises(SettingError, match="it has loss, grad_norm, lr, weight, train"):
        curves.find("zzz")


def test_a_name_that_several_end_in_is_refused(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.logger.log(1, {"val.bleu": 1.0, "test.bleu": 2.0})
    with pytest.raises(SettingError, match="bleu may be any of"):
        RunCurves(tmp_path / "run").find("bleu")


def test_a_run_without_updates_answers_from_its_log(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        for step in range(3):
            run.logger.log(step, {"loss": 3.0 - step})
    curves = RunCurves(tmp_path / "run")
    assert curves.read(curves.find("loss")).values.tolist() == [3.0, 2.0, 1.0]
    assert curves.updates.num_skipped == 0


def test_an_empty_run_has_no_names(tmp_path: Path) -> None:
    with Run(tmp_path / "run"):
        pass
    curves = RunCurves(tmp_path / "run")
    assert curves.names == []
    with pytest.raises(SettingError, match="it has logged no numbers yet"):
        curves.find("loss")


def test_damaged_lines_are_counted_by_file(curves: RunCurves) -> None:
    assert curves.num_bad["steps.rank0.jsonl"] == 1
    assert curves.num_bad["log.rank0.jsonl"] == 0
    assert curves.updates.num_skipped == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"STEP"}',
        '{"type":"STEP","step":"x","loss":1}',
        '{"type":"STEP","step":1e99,"loss":1}',
    ],
)
def test_records_that_are_no_updates_are_passed_over(line: str, tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.records("steps").append(
            {"type": "STEP", "step": 1, "epoch": 1, "loss": 2.0, "weight": 1.0, "lr": 0.1}
        )
        with run.records("steps").path.open("a") as file:
            file.write(line + "\n")
    curves = RunCurves(tmp_path / "run")
    assert curves.read("loss").values.tolist() == [2.0]
    assert curves.num_bad["steps.rank0.jsonl"] == 1
    assert "grad_norm" not in curves.names


@pytest.mark.parametrize("num", [20, 21])
def test_a_name_that_is_not_there_is_answered_with_twenty_that_are(
    tmp_path: Path, num: int
) -> None:
    names = [f"m{place:02d}.value{place:02d}" for place in range(num)]
    with Run(tmp_path / "run") as run:
        run.logger.log(1, dict.fromkeys(names, 1.0))
    with pytest.raises(SettingError, match="has no values called") as caught:
        RunCurves(tmp_path / "run").find("quite another")
    named = str(caught.value.hint)
    assert names[19] in named
    assert (", …" in named) is (num > 20)
    assert "m20" not in named
