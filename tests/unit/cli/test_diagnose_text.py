"""`sonde diagnose` of a run in which nothing went wrong."""

from pathlib import Path

import pytest

from sonde.cli.main import run as sonde
from sonde.run import Run


def test_a_run_without_events_is_told_first_and_in_lines_that_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(tmp_path)
    with Run(tmp_path / "a") as run:
        for step in range(1, 400):
            loss = 3.0 + 0.01 * (step * 7919 % 13)
            record = {"type": "STEP", "step": step, "loss": loss, "weight": 1.0, "lr": 0.1}
            run.records("steps").append(record)
    assert sonde(["diagnose", "a"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("no event")
    assert max(map(len, rest)) <= 60
    assert any("sonde diagnose a --step" in line for line in rest)


def test_a_run_without_a_record_of_its_steps_is_no_reason_to_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "a"):
        pass
    assert sonde(["diagnose", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.startswith("no event")
