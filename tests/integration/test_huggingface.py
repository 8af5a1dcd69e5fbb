"""The whole road with a Hugging Face Trainer: noticed, read, replayed in a new process, diagnosed, rolled back, resumed without it."""

import subprocess
import sys
from pathlib import Path

import pytest

from sonde.cli.main import run as sonde
from sonde.flight.batch_file import KeptBatches
from sonde.forensics.rollback import plan_rollback
from sonde.forensics.verdict import read_verdict

EXAMPLES = Path(__file__).parents[2] / "examples"
GARBLED = 333


def train(*arguments: object, launcher: tuple[str, ...] = (sys.executable,)) -> list[str]:
    """The command of the example."""
    return [*launcher, str(EXAMPLES / "huggingface.py"), *map(str, arguments)]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def names(run: Path, step: int) -> list[int]:
    return [one for micro in KeptBatches(run / "flight", 0).load(step).micro for one in micro.names]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_garbled_record_is_found_and_left_out_with_accumulation_workers_and_a_resume(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    command = train("--directory", directory, "--accumulate", 2, "--rows", 4, "--workers", 2)
    told = run(command)
    assert "The batch holds garbled text.: " in told
    assert sonde(["diagnose", str(directory), "--", *command]) == 0
    (path,) = (directory / "forensics").iterdir()
    step = int(path.stem.partition("-")[2])
    verdict = read_verdict(directory, step)
    assert verdict.causes[0].cause == "garbled_text"
    assert (verdict.causes[0].suspects[0].dataset, verdict.causes[0].suspects[0].sample) == ("train", GARBLED)
    assert "the same to the bit" in verdict.experiments[0].found
    plan = plan_rollback(directory, step)
    assert plan.host is not None
    assert plan.host.path == f"{directory}-out/checkpoint-{plan.checkpoint}"
    assert sonde(["rollback", str(directory), "--step", str(step), "--apply"]) == 0
    before = {number: names(directory, number) for number in range(plan.checkpoint + 1, step + 5)}
    told = run([*command, "--resume", plan.host.path])
    assert "garbled" not in told
    after = {number: names(directory, number) for number in before}
    assert [one for one in before[step] if one not in after[step]] == [GARBLED]
    assert {number: ids for number, ids in before.items() if ids != after[number]} == {step: before[step]}
