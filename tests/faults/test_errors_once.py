"""With several ranks an error is one block, from the rank that met it first, and one that comes
back is not repeated (fault 9).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.cli.main import is_mine_to_say


def _attempt(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Set the environment of a rank in an attempt of torchrun."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(
        "TORCHELASTIC_ERROR_FILE", str(folder / f"attempt_{number}" / "0" / "error.json")
    )


@pytest.mark.fault(9)
def test_of_several_ranks_the_first_to_fail_speaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"attempt_{number}").mkdir()
    _attempt(monkeypatch, tmp_path, 0)
    assert is_mine_to_say("no data")
    assert not is_mine_to_say("rank 1 lost rank 0 of 2")
    _attempt(monkeypatch, tmp_path, 1)
    assert not is_mine_to_say("no data")  # as before
    _attempt(monkeypatch, tmp_path, 2)
    assert is_mine_to_say("the disk is full")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert is_mine_to_say("no data")


def test_where_ranks_cannot_meet_each_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _attempt(monkeypatch, tmp_path / "missing", 0)
    assert is_mine_to_say("no data")
    assert is_mine_to_say("no data")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")  # torchrun keeps no files
    assert is_mine_to_say("no data")
    assert is_mine_to_say("no data")


@pytest.mark.fault(9)
@pytest.mark.slow
@pytest.mark.long_fault
@pytest.mark.timeout(300)
def test_a_restart_storm_says_its_cause_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "2",
    ]
    command += [
        "--module",
        "sonde",
        "train",
        str(tmp_path / "nothing"),
        "--run-dir",
        str(tmp_path / "run"),
        "--max-updates",
        "2",
    ]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("WORLD_SIZE", "TORCHELASTIC_ERROR_FILE")
    }
    environment |= {
        "TMPDIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode != 0
    assert len(re.findall("^error:", done.stderr, re.MULTILINE)) == 1, done.stderr
