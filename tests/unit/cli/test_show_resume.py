"""`sonde show` has the report of every restart."""

from pathlib import Path

import pytest
from resume_loops import first_start, resume

from sonde.cli.main import run as sonde
from sonde.forensics.causes import rules
from sonde.forensics.causes.resume_part import RULES, find, last_report


def test_show_prints_what_a_restart_did_not_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_start(tmp_path)
    resume(tmp_path, lambda loop: loop.load(without=("optimizer",)))
    sonde(["show", str(tmp_path / "run")])
    assert "EMPTY" in capsys.readouterr().out
    sonde(["show", str(tmp_path / "run"), "--json"])
    assert '"resumes"' in capsys.readouterr().out


def test_causes_name_what_a_restart_lost_and_nothing_else(tmp_path: Path) -> None:
    first_start(tmp_path)
    resume(tmp_path, lambda loop: loop.load(without=("scaler",)))
    run = tmp_path / "run"
    report = last_report(run, 22)
    assert [name for name in RULES if find(name, report, 22)] == ["resume_scaler"]
    assert last_report(run, 20) is None
    near = find("resume_scaler", report, 30)
    far = find("resume_scaler", report, 3000)
    assert near is not None
    assert far is not None
    assert far.score < near.score
    order = list(rules())
    assert max(order.index(name) for name in RULES) < order.index("garbled_text")
