"""`sonde show` answers first: how far, how well, what happened, what to do next."""

from pathlib import Path

import pytest
from eventful_run import BACK_TO, SPIKE_STEP, build_run
from resume_loops import first_start, resume

from sonde.cli.main import run as sonde
from sonde.records.layout import RunLayout
from sonde.run import Run


@pytest.fixture(scope="module")
def eventful_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("eventful"))


def shown(run: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    capsys.readouterr()
    assert sonde(["show", str(run), *flags]) == 0
    return capsys.readouterr().out.splitlines()


def the_line(lines: list[str], word: str) -> str:
    return next(line for line in lines if word in line)


def test_it_begins_with_the_name_and_the_status(
    eventful_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = shown(eventful_run, capsys)[0]
    assert first.split("  ") == [eventful_run.name, "finished"]


def test_it_says_how_far_and_how_well(
    eventful_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(eventful_run, capsys)
    assert "420 steps" in the_line(lines, "how far")
    how_well = the_line(lines, "how well")
    assert "→" in how_well
    assert "2.4 at step 400" in how_well


def test_an_event_has_its_cause_its_confidence_and_its_sample(
    eventful_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(eventful_run, capsys)
    event = lines.index(the_line(lines, f"step {SPIKE_STEP}  spike"))
    below = " ".join(lines[event : event + 4])
    assert "9.25" in below
    assert "cause: " in below
    assert "93%" in " ".join(lines)
    assert "train 3" in " ".join(lines)
    assert f"step {BACK_TO}  restart" in " ".join(lines)


def test_the_next_command_is_about_this_run_and_works(
    eventful_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(eventful_run, capsys)
    after = lines[lines.index("What to do next") :]
    rollback = the_line(after, "sonde rollback")
    assert str(eventful_run) in rollback
    assert rollback.endswith(f"--step {SPIKE_STEP}")
    assert sonde(["spikes", str(eventful_run), "--step", str(SPIKE_STEP)]) == 0


def test_what_a_restart_lost_stands_with_the_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_start(tmp_path)
    resume(tmp_path, lambda loop: loop.load(without=("optimizer",)))
    lines = shown(tmp_path / "run", capsys)
    restart = lines.index(the_line(lines, "restart"))
    assert "moments" in " ".join(lines[restart : restart + 4])
    assert sum("EMPTY" in line for line in lines) == 1


def test_a_failed_run_is_told_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), Run(tmp_path / "a"):
        _ = 1 / 0
    lines = shown(tmp_path / "a", capsys)
    assert any(line.strip().startswith("run it again") for line in lines)


def test_no_line_is_wider_than_the_terminal_unless_a_word_is(
    eventful_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = shown(eventful_run, capsys)
    wide = [line for line in lines if len(line) > 60 and "sonde " not in line]
    assert all(max(map(len, line.split())) > 30 for line in wide)


def test_hashes_and_versions_are_only_in_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = "0a1b" * 16
    with Run(tmp_path / "a", data={"train": digest}) as run:
        run.records("log").append({"type": "LOG", "step": 1, "rank": 0, "data": {"loss": 1.0}})
    assert digest not in " ".join(shown(tmp_path / "a", capsys))
    assert digest in " ".join(shown(tmp_path / "a", capsys, "--all"))


def test_a_damaged_check_is_no_reason_to_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "a"):
        pass
    RunLayout(tmp_path / "a").check.write_text("{")
    assert "check.json" in " ".join(shown(tmp_path / "a", capsys))
