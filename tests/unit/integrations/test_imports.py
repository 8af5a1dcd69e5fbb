"""What other tools have logged, as runs: files that they wrote themselves, and the same files torn
and garbled (tests/golden/data/imports).
"""

import json
import math
import random
import struct
from pathlib import Path

import pytest
from dashboard_server import ask, serving

from sonde.cli.main import run as sonde
from sonde.curves.event_logs import masked_crc
from sonde.log.reading import read
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.manifest import FINISHED, read_manifest
from sonde.records.reader import read_records
from sonde.report.run_curves import RunCurves

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "imports"
FILES = {
    "import-tensorboard": "events.out.tfevents",
    "import-wandb": "run.wandb",
    "import-trainer-state": "trainer_state.json",
}


def imported(verb: str, path: Path, out: Path) -> Path:
    assert sonde([verb, str(path), "--out", str(out)]) == 0
    return out


def series(run: Path, name: str) -> tuple[list[int], list[float]]:
    curve = RunCurves(run).read(name)
    return curve.steps.tolist(), curve.values.tolist()


def damage(run: Path) -> list[str]:
    (event,) = read_records(RunLayout(run).record_file(EVENTS, 0))
    return list(event["damage"])


def test_event_files_of_tensorboard_become_a_run(tmp_path: Path) -> None:
    run = imported("import-tensorboard", GOLDEN / "events.out.tfevents", tmp_path / "run")
    assert series(run, "train.lr") == ([1, 2, 3, 4, 5], [0.5] * 5)
    assert series(run, "train.loss")[1][2] == struct.unpack("<f", struct.pack("<f", 2 / 3))[0]
    assert series(run, "eval.as_tensor") == ([5], [1.25])
    assert series(run, "eval.as_double") == ([5], [0.1])
    assert math.isnan(series(run, "eval.loss")[1][0])
    assert RunCurves(run).find("loss") == "train.loss"
    manifest = read_manifest(run)
    assert manifest.settings == {"args.text_summary": '{"lr": 0.5}'}
    assert manifest.status == FINISHED
    assert 1.7e9 < manifest.created <= (manifest.ended or 0)
    assert len(read(run)) == 5  # a record a step, though the tool writes every number by itself
    assert damage(run) == []


def test_an_offline_run_of_wandb_becomes_a_run_over_the_axis_that_its_script_chose(
    tmp_path: Path,
) -> None:
    run = imported("import-wandb", GOLDEN / "run.wandb", tmp_path / "run")
    assert series(run, "train.loss") == (
        [10, 20, 30, 40, 50, 70],
        [*(2 / step for step in range(1, 6)), 0.25],
    )
    assert series(run, "nested.whole")[1] == [1, 2, 3, 4, 5]
    assert math.isnan(series(run, "nan")[1][0])
    assert not {"_step", "_timestamp", "text", "nothing"} & set(RunCurves(run).names)
    settings = {"project": "translation", "name": "first", "lr": 0.5, "model": {"dim": 8}}
    assert read_manifest(run).settings == settings
    assert damage(run) == []


def test_the_state_of_a_trainer_becomes_a_run(tmp_path: Path) -> None:
    for number in (4, 6, 10):  # of an output directory the newest counts
        (tmp_path / "out" / f"checkpoint-{number}").mkdir(parents=True)
    (tmp_path / "out" / "checkpoint-10" / "trainer_state.json").write_bytes(
        (GOLDEN / "trainer_state.json").read_bytes()
    )
    run = imported("import-trainer-state", tmp_path / "out", tmp_path / "run")
    assert series(run, "loss") == (
        [2, 4, 6],
        [2.188082218170166, 2.187342405319214, 2.186899185180664],
    )
    assert series(run, "learning_rate")[1][1] == 2.5e-05
    assert read_manifest(run).settings["train_batch_size"] == 8


@pytest.mark.parametrize(("verb", "name"), FILES.items())
def test_show_plot_log_report_and_dashboard_read_what_was_imported(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = imported(verb, GOLDEN / name, tmp_path / "runs" / "mine")
    for command in (["show"], ["plot"], ["log"], ["report", "-o", str(tmp_path / "report.html")]):
        assert sonde([command[0], str(run), *command[1:]]) == 0, capsys.readouterr().err
    assert "loss" in (tmp_path / "report.html").read_text()
    with serving(tmp_path / "runs") as server:
        assert 'href="/run/mine"' in ask(server.port, "/").text
        assert ask(server.port, "/run/mine").status == 200
        panels = json.loads(ask(server.port, "/api/curves?run=mine").text)["panels"]
        assert panels[0]["title"] == "loss"
        assert panels[0]["lines"][0]["y"]


def test_every_folder_with_event_files_is_a_run_as_tensorboard_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (GOLDEN / "events.out.tfevents").read_bytes()
    for folder in ("logs", "logs/a", "logs/deep/b", "logs/empty"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "events.out.tfevents.1.host").write_bytes(
            b"" if folder == "logs/empty" else content
        )
    imported("import-tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert sorted(
        str(path.parent.relative_to(tmp_path / "runs"))
        for path in tmp_path.glob("runs/**/run.json")
    ) == [
        "a",
        "deep/b",
        "logs",
    ]
    assert "there are no numbers in" in capsys.readouterr().out


def test_files_of_a_training_that_was_resumed_are_read_in_order_and_what_was_made_again_counts_once(
    tmp_path: Path,
) -> None:
    content = (GOLDEN / "events.out.tfevents").read_bytes()
    (tmp_path / "logs").mkdir()
    for number in (1, 2):
        (tmp_path / "logs" / f"events.out.tfevents.{number}.host").write_bytes(content)
    run = imported("import-tensorboard", tmp_path / "logs", tmp_path / "run")
    assert series(run, "train.lr") == ([1, 2, 3, 4, 5], [0.5] * 5)


@pytest.mark.parametrize(("verb", "name"), FILES.items())
def test_torn_and_garbled_files_are_survived_and_told(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (GOLDEN / name).read_bytes()
    dice = random.Random(1)
    for number in range(16):
        garbled = bytearray(content[: dice.randrange(len(content))] if number % 2 else content)
        for _ in range(0 if number % 4 == 1 else 5):
            if garbled:
                garbled[dice.randrange(len(garbled))] = dice.randrange(256)
        (tmp_path / name).write_bytes(garbled)
        out = tmp_path / f"run-{number}"
        code = sonde([verb, str(tmp_path / name), "--out", str(out)])
        told = capsys.readouterr()
        assert code == 0 or told.err.startswith("error:")
        assert (code == 0) == (out / "run.json").exists()
        if code == 0:
            assert sonde(["show", str(out)]) == 0


def test_a_torn_event_file_gives_what_stands_before_and_says_where_it_ends(tmp_path: Path) -> None:
    content = (GOLDEN / "events.out.tfevents").read_bytes()
    (tmp_path / "x.tfevents").write_bytes(content[:300])
    run = imported("import-tensorboard", tmp_path / "x.tfevents", tmp_path / "run")
    assert 0 < len(series(run, "train.loss")[0]) < 5
    assert "torn or damaged after" in damage(run)[0]


def test_a_number_that_was_altered_is_left_out(tmp_path: Path) -> None:
    content = (GOLDEN / "events.out.tfevents").read_bytes()
    (tmp_path / "x.tfevents").write_bytes(
        content.replace(struct.pack("<f", 0.5), struct.pack("<f", 0.25), 3)
    )
    run = imported("import-tensorboard", tmp_path / "x.tfevents", tmp_path / "run")
    altered = series(run, "train.lr")
    assert set(altered[1]) == {0.5}
    assert len(damage(run)) == 5 - len(altered[0]) + (5 - len(series(run, "train.loss")[0]))


def test_a_damaged_block_of_wandb_costs_what_is_in_it(tmp_path: Path) -> None:
    content = bytearray((GOLDEN / "run.wandb").read_bytes())
    place = content.index(b"train/loss", content.index(b"train/loss") + 1000)
    content[place : place + 5] = b"#####"
    (tmp_path / "x.wandb").write_bytes(content)
    run = imported("import-wandb", tmp_path / "x.wandb", tmp_path / "run")
    assert 70 in series(run, "train.loss")[0]
    assert "torn or damaged" in damage(run)[0]


def test_a_file_that_wandb_did_not_write_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.wandb").write_bytes(b"\xff" * 5000)
    assert sonde(["import-wandb", str(tmp_path / "x.wandb"), "--out", str(tmp_path / "run")]) == 1
    assert "x.wandb does not begin as a file of wandb does" in capsys.readouterr().err


def test_hostile_lengths_and_steps_are_refused_without_reading_them(tmp_path: Path) -> None:
    head = struct.pack("<Q", 1 << 62)
    (tmp_path / "x.tfevents").write_bytes(head + struct.pack("<I", masked_crc(head)) + b"x" * 100)
    assert (
        sonde(["import-tensorboard", str(tmp_path / "x.tfevents"), "--out", str(tmp_path / "run")])
        == 1
    )
    (tmp_path / "trainer_state.json").write_text(
        '{"log_history": [{"step": 1e999, "loss": 1}, {"step": 99999999999999999999, "loss":'
        " 1}, 7]}"
    )
    assert (
        sonde(
            [
                "import-trainer-state",
                str(tmp_path / "trainer_state.json"),
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 1
    )


def test_a_directory_that_holds_something_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").touch()
    assert sonde(["import-wandb", str(GOLDEN / "run.wandb"), "--out", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_nothing_to_import_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("import-wandb", "import-tensorboard"):
        assert sonde([verb, str(tmp_path), "--out", str(tmp_path / "run")]) == 1
        assert "there is nothing to import in" in capsys.readouterr().err
    assert sonde(["import-trainer-state", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_an_imported_run_has_the_events_of_its_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = [
        {"loss": 25.0 if step == 1500 else 3.7 + 0.01 * (step % 7), "step": step, "epoch": 1.0}
        for step in range(10, 3001, 10)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    run = imported("import-trainer-state", tmp_path / "trainer_state.json", tmp_path / "run")
    assert ", 1 event" in capsys.readouterr().out
    assert sonde(["spikes", str(run), "--json"]) == 0
    (spike,) = json.loads(capsys.readouterr().out)
    assert (spike["kind"], spike["first_step"], spike["value"], spike["is_over"]) == (
        "spike",
        1500,
        25.0,
        True,
    )
    assert sonde(["spikes", str(run)]) == 0
    assert "1,500" in capsys.readouterr().out


def test_any_log_can_be_imported_and_names_in_it_lead_nowhere_else(tmp_path: Path) -> None:
    rows = [f"{run},{step},{9 - step}" for run in ("../up", "b/c") for step in range(1, 5)]
    (tmp_path / "table.csv").write_text("\n".join(["run,step,loss", *rows]))
    imported("import-log", tmp_path / "table.csv", tmp_path / "runs")
    assert sorted(path.parent.name for path in tmp_path.rglob("run.json")) == ["b-c", "up"]
    assert series(tmp_path / "runs" / "b-c", "loss") == ([1, 2, 3, 4], [8.0, 7.0, 6.0, 5.0])
