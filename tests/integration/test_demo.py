"""`sonde demo` as a newcomer runs it: the planted document is named, and the run finishes without
it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.spikes.spike_log import read_spikes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run_demo(directory: Path, *flags: str) -> str:
    """What a demo said, after it ended well."""
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "demo", *flags],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def check(folder: Path, told: str) -> None:
    """What every demo leaves behind."""
    verdict = read(folder / "verdict.json")
    planted = read(folder / "planted.json")
    assert verdict["planted"] == planted
    assert verdict["equal"] is True
    assert (verdict["named"]["line"], verdict["named"]["cause"]) == (
        planted["line"],
        "garbled_text",
    )
    text = Path(planted["file"]).name
    assert (folder / "corpus" / text).read_text(encoding="utf-8").splitlines()[
        planted["line"] - 1
    ] == planted["after"]

    spikes = {spike.event.first_step: spike for spike in read_spikes(folder / "run").spikes}
    assert spikes[planted["update"]].num_seen == 1, (
        "it was trained past again, and must not have spiked again"
    )
    assert (folder / "run" / "skip-list.txt").is_file()
    tell_the_same_story(folder / "run", planted)
    assert read(folder / "run" / "run.json")["status"] == "finished"
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")

    assert "the same, bit for bit" in told
    assert max(map(len, told.splitlines())) <= 80
    commands = [line.split()[1] for line in told.splitlines() if line.startswith("   sonde ")]
    assert commands == ["spikes", "diagnose", "show", "report", "plot"]
    # Nobody but the first act and the last comparison may know: not the run, nor its data.
    knows = [
        path.name
        for path in folder.rglob("*.json*")
        if "planted" in path.read_text(encoding="utf-8", errors="ignore")
    ]
    assert sorted(knows) == ["verdict.json"]


def tell_the_same_story(run: Path, planted: dict[str, Any]) -> None:
    """The verbs that people try next name the spike, its cause and the line of its text."""
    for verb in ("show", "spikes"):
        told = sonde(run, verb)
        assert re.search(rf"step {planted['update']} +spike", told)
        assert "garbled text" in told
        assert f"{planted['file']}:{planted['line']}" in told
    diagnosed = sonde(run, "diagnose", "--step", str(planted["update"]))
    assert "garbled text" in diagnosed.splitlines()[0]
    assert "--apply" not in diagnosed, "the run went back already"


def sonde(run: Path, verb: str, *flags: str) -> str:
    """What a verb says about a run, in the folder in which the demo was run."""
    done = subprocess.run(
        [sys.executable, "-m", "sonde", verb, str(run), *flags],
        capture_output=True,
        text=True,
        check=True,
        cwd=run.parents[1],
    )
    return done.stdout


def test_a_language_model_on_docstrings(tmp_path: Path) -> None:
    told = run_demo(tmp_path)
    check(tmp_path / "sonde-demo", told)
    losses = [float(loss) for loss in re.findall(r"loss\s+(\d\.\d+)\s+on\s+held-out", told)]
    assert len(losses) == 2
    assert losses[1] < 4.5, "7 is the loss of guessing"


def test_a_translation_ends_in_beam_search(tmp_path: Path) -> None:
    told = run_demo(tmp_path, "--translate", "--out", "here")
    check(tmp_path / "here", told)
    found = re.search(r"(\d+) of 200 are right to the letter", told)
    assert found is not None
    assert int(found[1]) >= 120
    assert told.count("→") == 5


def test_a_folder_that_is_not_a_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sonde-demo").mkdir()
    (tmp_path / "sonde-demo" / "mine.txt").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "demo"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode != 0
    assert "no demo of sonde made it" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["sonde-demo", "mine.txt"]
