"""The documents that verbs print with --json have exactly the fields that docs/formats/answers.md
lists, and the skill for agents names only what exists.
"""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from logs_of_others import falling

from sonde.cli.main import VERBS, build_app
from sonde.cli.main import run as sonde
from sonde.forensics.replay import ReplayReport
from sonde.run import Run

PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs" / "formats" / "answers.md"
AGENTS = PROJECT / "docs" / "agents.md"


def fields_of(title: str) -> set[str]:
    """The names in the first column of the tables in a section of the page."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## `{title}`\n")
    section = rest.partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    sonde([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    loss = falling({250: 9.0})
    with Run(tmp_path / "run") as opened:
        recorder = opened.spikes()
        for step in range(1, 401):
            opened.logger.log(step=step, data={"loss": loss(step)})
            rows = [("train", 2 * step), ("train", 2 * step + 1)]
            recorder.observe(step, loss(step), sample_ids=rows, sample_losses=[1.0, loss(step) * 2])
    return tmp_path / "run"


def test_spikes_prints_the_fields_of_its_section(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = fields_of("sonde spikes RUN")
    (event,) = answer(capsys, "spikes", run)
    (step,) = [answer(capsys, "spikes", run, "--step", 250)]
    assert {*event, *event["worst"], *step} == listed


def test_worst_prints_the_fields_of_its_section(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(answer(capsys, "worst", run)) == fields_of("sonde worst RUN")


def test_compare_logs_prints_the_fields_of_its_section(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(answer(capsys, "compare-logs", run, run)) == fields_of("sonde compare-logs A B")


def test_checkpoints_prints_the_fields_of_its_section(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "checkpoints", run, "--verify")
    assert set(found) == fields_of("sonde checkpoints RUN --verify")


def test_audit_prints_the_fields_of_its_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.txt").write_text("The old man went to the sea.\n" * 30)
    found = answer(capsys, "audit", tmp_path / "corpus.txt")
    assert set(found) == fields_of("sonde audit DATA")


def test_replay_prints_the_fields_of_its_section() -> None:
    names = set(ReplayReport.__dataclass_fields__) | {"dump"}
    listed = fields_of("sonde replay RUN --step N")
    assert names == listed


def test_rollback_prints_the_fields_of_its_section() -> None:
    source = (PROJECT / "src" / "sonde" / "cli" / "diagnose.py").read_text(encoding="utf-8")
    picked = source.partition("plan_fields = picked(")[2].partition("tell(document")[0]
    assert set(re.findall(r'"(\w+)"', picked)) == fields_of("sonde rollback RUN --step N")


@pytest.mark.parametrize("text", ["SKILL.md", "docs/agents.md"])
def test_what_agents_are_told_to_run_exists(text: str) -> None:
    shipped = files("sonde").joinpath("SKILL.md").read_text(encoding="utf-8")
    content = shipped if text == "SKILL.md" else AGENTS.read_text(encoding="utf-8")
    commands = re.findall(r"sonde ([a-z-]+) [A-Z\w.]+/?.*", content)
    assert {"why", "diagnose", "rollback"} <= set(commands)
    for verb in commands:
        assert verb in VERBS
    for line in re.findall(r"^ *sonde .+$", content, re.MULTILINE):
        verb = line.split()[1]
        flags = re.findall(r"--[a-z]+", line.partition(" -- ")[0].partition("#")[0])
        names = {
            name
            for argument in build_app(verb)[verb].assemble_argument_collection()
            for name in argument.names
        }
        assert set(flags) <= names, line


def test_the_skill_has_the_head_that_agents_look_for() -> None:
    text = files("sonde").joinpath("SKILL.md").read_text(encoding="utf-8")
    _, head, _ = text.split("---\n", 2)
    assert re.fullmatch(r"name: sonde\ndescription: .{100,1000}\n", head)
