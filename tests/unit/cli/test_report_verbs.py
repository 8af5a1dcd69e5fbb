"""`sonde report` and `sonde plot`."""

from pathlib import Path

import pytest
from eventful_run import SPIKE_STEP, build_run

from sonde.cli.main import run


@pytest.fixture(scope="module")
def eventful_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("eventful"))


@pytest.mark.parametrize(
    ("flags", "name", "begins"),
    [
        ([], "report.html", "<!DOCTYPE html>"),
        (["--format", "md"], "report.md", "# run"),
        (["-o", "x/one.html"], "x/one.html", "<!DOCTYPE html>"),
        (["--out", "one.md"], "one.md", "# run"),
        (["-o", "one.md", "--format", "html"], "one.md", "<!DOCTYPE html>"),
    ],
)
def test_report_writes_one_file_in_the_format_asked_for(
    flags: list[str],
    name: str,
    begins: str,
    eventful_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    assert run(["report", str(eventful_run), *flags]) == 0
    assert (tmp_path / name).read_text().startswith(begins)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{name}: ")
    assert first.endswith(" kB; 1 verdict, 1 event")
    assert second == "  1 damaged line in steps.rank0.jsonl"
    monkeypatch.undo()


def test_report_refuses_a_directory_as_its_file(
    eventful_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(eventful_run), "-o", str(tmp_path)]) == 1
    assert "is a directory" in capsys.readouterr().err


def test_report_refuses_a_format_that_it_does_not_write(
    eventful_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(eventful_run), "-o", str(tmp_path / "x.pdf")]) == 1
    assert str(tmp_path / "x.html") in capsys.readouterr().err
    assert not (tmp_path / "x.pdf").exists()
    wanted = ["report", str(eventful_run), "-o", str(tmp_path / "x.txt"), "--format", "md"]
    assert run(wanted) == 0  # asked for by name


def test_report_and_plot_refuse_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("report", "plot"):
        assert run([verb, str(tmp_path)]) == 1
        assert "there is no run" in capsys.readouterr().err


def test_plot_draws_each_name_and_marks_the_events(
    eventful_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert run(["plot", str(eventful_run), "loss", "lr", "ips"]) == 0
    printed = capsys.readouterr().out
    titles = [line.split()[0] for line in printed.splitlines() if " values" in line]
    assert titles == ["loss", "lr", "train.ips"]
    assert printed.count("▲") == 3
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 70


def test_plot_shows_the_loss_of_a_range_of_steps(
    eventful_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            ["plot", str(eventful_run), "--from", str(SPIKE_STEP - 9), "--to", str(SPIKE_STEP + 10)]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert printed.startswith("loss  last 2.")
    assert "20 values" in printed


def test_plot_names_the_nearest_name_and_refuses_an_empty_range(
    eventful_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plot", str(eventful_run), "los"]) == 1
    assert "did you mean 'loss'?" in capsys.readouterr().err
    assert run(["plot", str(eventful_run), "--from", "9", "--to", "3"]) == 1
    assert "--from 9 comes after --to 3" in capsys.readouterr().err
    assert run(["plot", str(eventful_run), "--from", "90000"]) == 1
    assert "no step lies in the range" in capsys.readouterr().err
