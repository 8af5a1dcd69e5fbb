"""The road of an example with a host: train, diagnose by the script, roll back, resume; for the
tests of the integrations.
"""

import subprocess
import sys
from pathlib import Path

from sonde.cli.main import run as sonde
from sonde.forensics.rollback import plan_rollback
from sonde.forensics.verdict import read_verdict
from sonde.recorder.batch_file import KeptBatches
from sonde.records.layout import RunLayout

EXAMPLES = Path(__file__).parents[1] / "examples"
GARBLED = 333


def names(run: Path, step: int, num_ranks: int = 1) -> list[int]:
    """The samples of a step."""
    updates = [KeptBatches(run / "flight", rank).load(step) for rank in range(num_ranks)]
    return [name for update in updates for micro in update.micro for name in micro.names]


def command_of(example: str, *arguments: object, num_ranks: int = 1) -> list[str]:
    """How an example is started."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return [
        sys.executable,
        *(launcher if num_ranks > 1 else []),
        str(EXAMPLES / example),
        *map(str, arguments),
    ]


def start(command: list[str]) -> str:
    """Run a script; returns what it told."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def go_the_road(example: str, directory: Path, *arguments: object, num_ranks: int = 1) -> str:
    """The whole road, with a resume in the middle of an epoch; returns the host's way on."""
    command = command_of(example, "--directory", directory, *arguments, num_ranks=num_ranks)
    assert "The batch holds garbled text (" in start(command)
    step = max(number for number, _ in RunLayout(directory).verdicts())
    assert sonde(["diagnose", str(directory), "--step", str(step), "--", *command]) == 0
    verdict = read_verdict(directory, step)
    first = verdict.causes[0]
    assert first.cause == "garbled_text"
    assert [(suspect.dataset, suspect.sample) for suspect in first.suspects] == [("train", GARBLED)]
    assert "the same to the bit" in verdict.experiments[0].found
    plan = plan_rollback(directory, step)
    assert plan.host is not None
    assert sonde(["rollback", str(directory), "--step", str(step), "--apply"]) == 0
    before = {
        number: names(directory, number, num_ranks)
        for number in range(plan.checkpoint + 1, step + 5)
    }
    assert f"step {step}:" not in start([*command, "--resume", plan.host.path])
    after = {number: names(directory, number, num_ranks) for number in before}
    assert [sample for sample in before[step] if sample not in after[step]] == [GARBLED]
    assert {number for number, ids in before.items() if ids != after[number]} == {step}
    return plan.host.way_on
