import csv
import io
import json
import math
from pathlib import Path

import pytest

from sonde.cli.compare import ToleranceFlags, compare_logs
from sonde.cli.log import log, tail
from sonde.cli.main import run
from sonde.errors import RunNotFound, SettingError
from sonde.log import JSONStreamBackend, Logger, Verbosity
from sonde.run import Run


def write(path: Path, losses: list[float], *, name: str = "loss") -> str:
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.metadata(name, {"unit": "nats", "GOAL": "MINIMIZE", "STAGE": "TRAIN"})
        logger.metadata("speed", {"unit": "imgs/s", "format": ":.3f"})
        for step, loss in enumerate(losses):
            logger.log((0, step), {name: loss, "speed": 10.0, "note": "x"})
    return str(path)


def test_log_shows_last_best_and_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(write(tmp_path / "a.json", [3.0, 1.0, 2.0]))
    output = capsys.readouterr().out.splitlines()
    assert "5 records, last epoch 0 step 2" in output[0]
    rows = {line.split()[0]: line.split() for line in output[1:] if line}
    assert rows["loss"] == ["loss", "2", "1", "0,", "1", "2", "3", "nats"]
    assert rows["speed"] == ["speed", "10.000", "10.000", "3", "imgs/s"]


def test_log_says_what_is_not_finite_bad_or_superseded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    write(path, [3.0, math.nan, 2.0])
    with path.open("a") as file:
        file.write("rubbish\n")
    write(path, [3.0])
    log(str(path))
    assert "3 replaced after a rollback or restart, 1 damaged line" in capsys.readouterr().out
    log(write(tmp_path / "b.json", [math.inf]))
    assert "1 (1 not finite)" in capsys.readouterr().out


def test_log_as_json_and_csv_has_one_entry_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [write(tmp_path / "a.json", [3.0, 1.0]), write(tmp_path / "b.json", [2.0])]
    log(*sources, json=True)
    document = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in document] == sources
    assert document[0]["metrics"][0]["best"] == 1.0
    log(*sources, csv=True)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["run"], row["last"]) for row in rows if row["metric"] == "loss"] == [
        (sources[0], "1.0"),
        (sources[1], "2.0"),
    ]


def test_log_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError, match="no log was given"):
        log()
    with pytest.raises(RunNotFound, match="no log at"):
        log(str(tmp_path / "missing"))
    (tmp_path / "empty.json").write_text("")
    assert run(["log", str(tmp_path / "empty.json")]) == 1
    assert "no records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("losses", "code"), [([1.0, 2.01], 0), ([1.0, 1.0], 1), ([0.5, 4.0], 1), ([1.0, math.nan], 1)]
)
def test_compare_logs_exits_1_beyond_the_tolerance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], losses: list[float], code: int
) -> None:
    a = write(tmp_path / "a.json", [1.0, 2.0])
    b = write(tmp_path / "b.json", losses)
    assert compare_logs(a, b) == code
    assert ("the runs agree" if code == 0 else "the runs differ") in capsys.readouterr().out


def test_compare_logs_takes_tolerance_metric_and_smoothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a.json", [1.0, 3.0, 1.0, 3.0], name="train.loss")
    b = write(tmp_path / "b.json", [3.0, 1.0, 3.0, 1.0], name="train.loss")
    assert compare_logs(a, b) == 1
    assert compare_logs(a, b, tolerance=ToleranceFlags(rtol=2.0)) == 0
    assert compare_logs(a, b, tolerance=ToleranceFlags(atol=2.0)) == 0
    assert compare_logs(a, b, metric="speed") == 0
    capsys.readouterr()
    assert compare_logs(a, b, smooth=4, csv=True) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["step"] for row in rows] == ["0 0", "0 1", "0 2", "0 3"]
    assert (float(rows[0]["absolute"]), float(rows[3]["absolute"])) == (2.0, 0.0)


def test_compare_logs_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.json", [1.0, 2.0, 3.0])
    b = write(tmp_path / "b.json", [1.0, 1.0])
    assert compare_logs(a, b, json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["agree"], document["num_steps"], document["num_only_a"]) == (False, 2, 1)
    assert (document["mean_relative"], document["max_absolute"], document["worst_step"]) == (
        0.25,
        1.0,
        [0, 1],
    )


def test_compare_logs_says_which_metrics_there_are(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", [1.0])
    b = write(tmp_path / "b.json", [1.0], name="perplexity")
    with pytest.raises(SettingError, match="no numbers called 'loss'"):
        compare_logs(b, a)
    with pytest.raises(SettingError, match="no numbers called") as caught:
        compare_logs(a, a, metric="los")
    assert caught.value.hint == "did you mean 'loss'?"


def test_tail_shows_the_last_records_of_a_file_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write(tmp_path / "a.json", [float(step) for step in range(20)]))
    tail(path, lines=2, once=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[2] for line in lines] == [
        "epoch 0 step 18  loss 18 nats  speed 10.000 imgs/s  note x",
        "epoch 0 step 19  loss 19 nats  speed 10.000 imgs/s  note x",
    ]


def test_tail_rounds_numbers_and_leaves_out_what_only_programs_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run") as a_run:
        data = {"rank": -1, "train.loss": 1 / 3}
        a_run.records("log").append({"type": "LOG", "step": 1200, "rank": 0, "data": data})
    tail(tmp_path / "run", once=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "step 1,200  train.loss 0.33333"


def test_compare_logs_says_first_on_how_many_steps_the_runs_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a.json", [1.0] * 14)
    b = write(tmp_path / "b.json", [1.0] * 4)
    assert run(["compare-logs", a, b, "--rtol", "0.1", "--atol", "0"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "4 steps" in first
    assert "14" in first
    assert compare_logs(a, a) == 0
    assert "all 14 steps" in capsys.readouterr().out.splitlines()[0]


def test_tail_follows_a_run_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, run.records("log"))])
    steps = iter(range(5))

    def instead_of_sleeping(_: float) -> None:
        step = next(steps)
        if step < 3:
            logger.log(step, {"loss": 0.5})
        else:
            logger.info("done")
            logger.close()
            run.close()

    monkeypatch.setattr("sonde.cli.log.time.sleep", instead_of_sleeping)
    tail(tmp_path / "run", lines=0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[2] or line for line in lines] == [
        "step 1  loss 0.5",
        "step 2  loss 0.5",
        "done",
    ]


def test_tail_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tail(Path(write(tmp_path / "a.json", [math.nan])), once=True, json=True)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["type"] for record in records] == ["METADATA", "METADATA", "LOG"]
    assert records[2]["data"]["loss"] == "NaN"


def test_tail_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        tail(tmp_path / "missing")
    with pytest.raises(SettingError, match="--lines"):
        tail(tmp_path, lines=-1)
