"""`sonde show` has the report of every restart."""

from pathlib import Path

import pytest
from resume_loops import first_start, resume

from sonde.cli.main import run as sonde


def test_show_prints_what_a_restart_did_not_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_start(tmp_path)
    resume(tmp_path, lambda loop: loop.load(without=("optimizer",)))
    sonde(["show", str(tmp_path / "run")])
    assert "EMPTY" in capsys.readouterr().out
    sonde(["show", str(tmp_path / "run"), "--json"])
    assert '"resumes"' in capsys.readouterr().out
