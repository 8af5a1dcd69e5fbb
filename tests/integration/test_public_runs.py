"""Outside truth: the events that the rules find on public runs recur where the data does. The runs
lie beside the project; without them there is nothing to test.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "benchmarks" / "public_runs.py"
FOLDERS = [parent / "shared" / "data" / "public-runs" for parent in PROJECT.parents]


def benchmark(**environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.slow
@pytest.mark.skipif(not any(folder.is_dir() for folder in FOLDERS), reason="no public runs here")
def test_events_recur_where_runs_share_their_data_and_calm_runs_are_left_alone() -> None:
    done = benchmark()
    assert done.returncode == 0, done.stderr
    assert "| events that recur | 98.1% | at least 90% | yes |" in done.stdout
    assert "| events per 10,000 points of calm runs | 0.72 | at most 1 | yes |" in done.stdout
    assert "| known spikes of Cisco found | 4 of 4 | all | yes |" in done.stdout


@pytest.mark.slow
def test_without_the_runs_it_says_so_and_ends(tmp_path: Path) -> None:
    done = benchmark(SONDE_PUBLIC_RUNS=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the public runs are not here")
