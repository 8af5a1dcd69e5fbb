"""The road of an example with a host: train, diagnose by the script, roll back, resume; for the tests of the integrations."""

import subprocess
import sys
from pathlib import Path

from sonde.cli.main import run as sonde
from sonde.flight.batch_file import KeptBatches
from sonde.forensics.rollback import plan_rollback
from sonde.forensics.verdict import read_verdict

EXAMPLES = Path(__file__).parents[1] / "examples"
GARBLED = 333


def names(run: Path, step: int) -> list[int]:
    """The samples of a step."""
    return [one for micro in KeptBatches(run / "flight", 0).load(step).micro for one in micro.names]


def start(command: list[str]) -> str:
    """Run a script; returns what it told."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def go_the_road(example: str, directory: Path, *arguments: object) -> str:
    """The whole road with accumulation, data workers and a resume in the middle of an epoch; returns the host's way on."""
    command = [sys.executable, str(EXAMPLES / example), "--directory", str(directory), *map(str, arguments)]
    assert "The batch holds garbled text.: " in start(command)
    step = max(int(one.stem.partition("-")[2]) for one in (directory / "forensics").iterdir())
    assert sonde(["diagnose", str(directory), "--step", str(step), "--", *command]) == 0
    verdict = read_verdict(directory, step)
    first = verdict.causes[0]
    assert first.cause == "garbled_text"
    assert [(one.dataset, one.sample) for one in first.suspects] == [("train", GARBLED)]
    assert "the same to the bit" in verdict.experiments[0].found
    plan = plan_rollback(directory, step)
    assert plan.host is not None
    assert sonde(["rollback", str(directory), "--step", str(step), "--apply"]) == 0
    before = {number: names(directory, number) for number in range(plan.checkpoint + 1, step + 5)}
    assert f"step {step}:" not in start([*command, "--resume", plan.host.path])
    after = {number: names(directory, number) for number in before}
    assert [one for one in before[step] if one not in after[step]] == [GARBLED]
    assert {number for number, ids in before.items() if ids != after[number]} == {step}
    return plan.host.way_on
