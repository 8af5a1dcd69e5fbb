"""`sonde runs` and `sonde show` on run directories made for the purpose."""

import json
import math
import os
from pathlib import Path

import pytest

from sonde.cli.main import run as sonde
from sonde.records.layout import RunLayout
from sonde.run import Run


def make_run(directory: Path, *, num_steps: int = 3, settings: object = None) -> None:
    with Run(directory, config=settings, seeds={"torch": 7}) as run:
        for step in range(num_steps):
            run.records("log").append(
                {"type": "LOG", "step": step, "rank": 0, "data": {"loss": 1 / (step + 1)}}
            )


def kill_run(directory: Path) -> None:
    """A run whose process died without a word."""
    pid = os.fork()
    if pid == 0:
        run = Run(directory)
        run.records("log").append({"type": "LOG", "step": 0, "data": {"loss": 9.0}})
        os._exit(1)
    os.waitpid(pid, 0)


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    assert sonde([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_runs_are_found_several_levels_down_and_listed_by_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "b" / "deep" / "one")
    make_run(tmp_path / "a")
    listed = as_json(capsys, "runs", str(tmp_path))
    assert isinstance(listed, list)
    assert [Path(run["directory"]).name for run in listed] == ["one", "a"]
    assert [run["last_step"] for run in listed] == [2, 2]


def test_the_table_shows_status_step_and_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a")
    assert sonde(["runs", str(tmp_path)]) == 0
    header, row = capsys.readouterr().out.splitlines()
    columns = ["run", "status", "step", "loss", "best", "events", "age", "cause"]
    assert header.split() == columns
    assert row.split()[:5] == [str(tmp_path / "a"), "finished", "2", "0.33333", "0"]


def test_the_loss_is_the_newest_training_loss_after_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "a") as run:
        for step, data in (
            ([1, 5], {"train.loss": 3.25}),
            ([1, 6], {"val.loss": 2.5}),
            ([1, 7], {"train.loss": 3.125}),
            ([1, 7], {"val.loss": 2.75}),
        ):
            run.records("log").append({"type": "LOG", "step": step, "rank": 0, "data": data})
    assert sonde(["runs", str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[2:5] == ["7", "3.125", "2.5"]


def test_a_long_name_is_cut_in_the_middle_on_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"begin-{'x' * 60}-end"
    make_run(tmp_path / name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert sonde(["runs", str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert "begin-x" in row
    assert "x-end" in row
    assert name not in row
    monkeypatch.undo()
    assert sonde(["runs", str(tmp_path)]) == 0
    assert str(tmp_path / name) in capsys.readouterr().out  # a pipe gets all of it


def test_a_killed_run_is_told_from_a_running_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_run(tmp_path / "killed")
    with Run(tmp_path / "running"):
        listed = as_json(capsys, "runs", str(tmp_path))
    assert isinstance(listed, list)
    assert {Path(run["directory"]).name: run["status"] for run in listed} == {
        "killed": "killed",
        "running": "running",
    }


def test_a_failed_run_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), Run(tmp_path / "a"):
        _ = 1 / 0
    assert sonde(["show", str(tmp_path / "a")]) == 0
    assert "failed (ZeroDivisionError: division by zero)" in capsys.readouterr().out


def test_a_damaged_manifest_is_listed_and_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    RunLayout(tmp_path / "a").manifest.write_bytes(b'{"format": "sonde-run", "vers')
    listed = as_json(capsys, "runs", str(tmp_path))
    assert isinstance(listed, list)
    assert {Path(run["directory"]).name: run["status"] for run in listed} == {
        "a": "damaged",
        "b": "finished",
    }
    assert sonde(["runs", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out


def test_an_empty_directory_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sonde(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"no runs below {tmp_path}\n")


def test_a_missing_directory_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sonde(["runs", str(tmp_path / "no")]) == 1
    assert "is not a directory" in capsys.readouterr().err


def test_show_gives_the_manifest_and_the_record_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", settings={"lr": math.inf})
    shown = as_json(capsys, "show", str(tmp_path / "a"))
    assert isinstance(shown, dict)
    assert shown["manifest"]["settings"] == {"lr": "Infinity"}
    assert shown["manifest"]["seeds"] == {"torch": 7}
    assert shown["status"] == "finished"
    assert [(file["kind"], file["rank"]) for file in shown["files"]] == [("events", 0), ("log", 0)]


def test_show_sums_up_every_metric_and_counts_what_is_not_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "a") as run:
        for step, loss in enumerate([3.0, math.nan, 1.0, math.inf, 2.0]):
            run.records("log").append(
                {"type": "LOG", "step": step, "rank": 0, "data": {"loss": loss}}
            )
    with (tmp_path / "a" / "records" / "log.rank0.jsonl").open("ab") as file:
        file.write(b"not a record\n")
    shown = as_json(capsys, "show", str(tmp_path / "a"))
    assert isinstance(shown, dict)
    assert shown["metrics"] == [
        {
            "name": "loss",
            "num_values": 5,
            "num_nonfinite": 2,
            "first": 3.0,
            "last": 2.0,
            "min": 1.0,
            "max": 3.0,
        }
    ]
    assert [(file["num_records"], file["num_bad"]) for file in shown["files"]] == [(2, 0), (5, 1)]
    assert sonde(["show", str(tmp_path / "a"), "--all"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("loss"))
    assert row.split() == ["loss", "5", "3", "2", "1", "3", "2"]


def test_show_all_has_settings_seeds_and_versions_and_leaves_out_what_is_not_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "a", settings={"width": 8, "min_lr": None})
    assert sonde(["show", str(tmp_path / "a"), "--all"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for expected in (["width", "8"], ["torch", "7"], ["settings"], ["versions"]):
        assert expected in rows
    assert not any(row[:1] == ["min_lr"] for row in rows)


def test_markup_in_names_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "[red]x", settings={"a": "[bold]b[/bold]"})
    assert sonde(["runs", str(tmp_path)]) == 0
    assert "[red]x" in capsys.readouterr().out
    assert sonde(["show", str(tmp_path / "[red]x"), "--all"]) == 0
    assert "[bold]b[/bold]" in capsys.readouterr().out
