"""`sonde demo` as a newcomer runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_leaves_a_finished_run_whose_loss_fell(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "sonde", "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sonde show sonde-demo/" in done.stdout
    (run,) = (tmp_path / "sonde-demo").iterdir()
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    lines = (run / "records" / "log.rank0.jsonl").read_text().splitlines()
    losses = [json.loads(line)["data"]["loss"] for line in lines]
    assert len(losses) == 200
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
