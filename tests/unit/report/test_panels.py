"""What a page draws of a run: names as people write them, epochs in a row, gaps, events."""

import math
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.report.marks import Mark
from sonde.report.panels import Stretch, View, run_panels, sections
from sonde.report.run_curves import RunCurves, prefix_of
from sonde.run import Run

ALL = Stretch(None, None, 1000)


def log_run(directory: Path, rows: list[tuple[Any, dict[str, Any]]]) -> Path:
    with Run(directory) as run:
        for step, values in rows:
            run.logger.log(step, values)
    return directory


def panels(run: Path, *metrics: str, marks: list[Mark] | None = None, **look: Any) -> Any:
    return run_panels(RunCurves(run), marks or [], run, View(stretch=ALL, **look), metrics)


def steps(line: dict[str, Any]) -> list[float]:
    place = 0.0
    found = []
    for change in line["dx"]:
        place += change
        found.append(place)
    return found


@pytest.mark.parametrize(
    "name", ["train/loss", "Train Loss", "loss/train", "training_loss", "train.loss", "loss"]
)
def test_the_loss_is_found_however_it_is_written(name: str, tmp_path: Path) -> None:
    run = log_run(tmp_path / "run", [(step, {name: 1.0 / step}) for step in (1, 2, 4)])
    (panel,) = panels(run)["panels"]
    assert (panel["title"], panel["lines"][0]["y"]) == ("loss", [1.0, 0.5, 0.25])
    assert sections(RunCurves(run)) == []


def test_evaluations_with_a_slash_are_dots_on_the_loss(tmp_path: Path) -> None:
    run = log_run(tmp_path / "run", [(1, {"train/loss": 2.0}), (2, {"eval/loss": 3.0})])
    lines = panels(run)["panels"][0]["lines"]
    assert [(line["label"], line["kind"], line["y"]) for line in lines] == [
        ("train", "line", [2.0]),
        ("validation", "dots", [3.0]),
    ]


def test_all_other_metrics_are_in_sections_by_prefix(tmp_path: Path) -> None:
    values = {
        "train/loss": 1.0,
        "train/acc top-1": 0.5,
        "layers/0/norm": 1.0,
        "layers/1/norm": 1.0,
        "eval.bleu": 2.0,
        "memory": 3.0,
    }
    run = log_run(tmp_path / "run", [(1, values)])
    assert sections(RunCurves(run)) == [
        {"name": "eval", "metrics": ["eval.bleu"]},
        {"name": "layers", "metrics": ["layers/0/norm", "layers/1/norm"]},
        {"name": "train", "metrics": ["train/acc top-1"]},
        {"name": "", "metrics": ["memory"]},
    ]
    (panel,) = panels(run, "train/acc top-1")["panels"]
    assert (panel["id"], panel["lines"][0]["y"]) == ("train/acc top-1", [0.5])


def test_a_prefix_ends_at_the_first_slash_or_dot() -> None:
    assert [prefix_of(name) for name in ("a/b/c", "a.b/c", "a.b.c", "abc")] == ["a", "a.b", "a", ""]


def test_a_metric_that_is_not_there_is_said(tmp_path: Path) -> None:
    run = log_run(tmp_path / "run", [(1, {"train/acc": 1.0})])
    found = panels(run, "train/ac", "zzz")
    assert found["panels"] == []
    assert found["missing"] == [
        "train/ac was not recorded in this run; did you mean 'train/acc'?",
        "zzz was not recorded in this run",
    ]


def test_iterations_that_restart_with_every_epoch_are_in_a_row(tmp_path: Path) -> None:
    rows: list[tuple[Any, dict[str, Any]]] = []
    for epoch in (1, 2, 3):
        rows += [([epoch, iteration], {"loss": float(epoch)}) for iteration in range(1, 101)]
        rows.append(([epoch], {"val.loss": float(epoch)}))
    train, validation = panels(log_run(tmp_path / "run", rows))["panels"][0]["lines"]
    assert steps(train) == list(range(1, 301))
    assert train["y"] == [1.0] * 100 + [2.0] * 100 + [3.0] * 100
    assert steps(validation) == [100, 200, 300]


def test_iterations_from_zero_keep_a_place_each(tmp_path: Path) -> None:
    rows = [([epoch, i], {"loss": 1.0}) for epoch in (0, 1) for i in range(10)]
    (line,) = panels(log_run(tmp_path / "run", rows))["panels"][0]["lines"]
    assert steps(line) == list(range(20))


def test_iterations_that_go_on_over_epochs_stay_as_they_are(tmp_path: Path) -> None:
    rows = [([1 + step // 100, step], {"loss": 1.0}) for step in range(50, 301, 50)]
    (line,) = panels(log_run(tmp_path / "run", rows))["panels"][0]["lines"]
    assert steps(line) == list(range(50, 301, 50))


def test_a_line_is_interrupted_by_nan_and_by_gaps(tmp_path: Path) -> None:
    values = [(step, 2.0) for step in range(1, 101)]
    values += [(step, math.nan) for step in range(101, 111)]
    values += [(step, 1.0) for step in range(111, 201)]
    values += [(step, 0.5) for step in range(300, 401)]
    run = log_run(tmp_path / "run", [(step, {"loss": value}) for step, value in values])
    (panel,) = panels(run)["panels"]
    (line,) = panel["lines"]
    interruptions = [step for step, y in zip(steps(line), line["y"], strict=True) if y is None]
    assert interruptions == [101, 250]
    assert [step for step, _ in panel["broken"]] == list(range(101, 111))


def test_rare_values_at_irregular_distances_have_no_gaps(tmp_path: Path) -> None:
    rows = [(step, {"loss": 1.0}) for step in (1, 2, 3, 500, 501, 1000)]
    (line,) = panels(log_run(tmp_path / "run", rows))["panels"][0]["lines"]
    assert None not in line["y"]


def test_the_values_of_events_are_drawn_if_the_curve_has_none_there(tmp_path: Path) -> None:
    rows = [(step, {"loss": 1.0}) for step in range(50, 501, 50)]
    run = log_run(tmp_path / "run", rows)
    known: dict[str, Any] = {"title": "", "metric": "loss", "kind": "spike"}
    marks = [
        Mark(**known, step=150, last=150, value=1.0, peak=1.0, peak_step=150),
        Mark(**known, step=233, last=240, value=9.0, peak=11.0, peak_step=235),
        Mark(kind="sample", title="", metric="sample loss", step=300, last=300, value=4.0),
    ]
    line, peaks = panels(run, marks=marks)["panels"][0]["lines"]
    assert line["kind"] == "line"
    assert (peaks["kind"], steps(peaks), peaks["y"]) == ("peaks", [233, 235], [9.0, 11.0])


def test_curves_and_marks_share_another_axis(tmp_path: Path) -> None:
    rows = [(step, {"loss": 1.0, "tokens": 100.0 * step}) for step in range(1, 11)]
    run = log_run(tmp_path / "run", rows)
    mark = Mark(kind="spike", title="up", step=5, last=6)
    found = panels(run, marks=[mark], axis="tokens")
    assert found["whole"] == [100, 1000]
    (event,) = found["events"]
    assert (event["first"], event["last"], event["step"]) == (500, 600, 5)
    with pytest.raises(SettingError, match="x is one of step, tokens, seconds, not 'nothing'"):
        panels(run, axis="nothing")


def test_a_smoothed_curve_has_the_raw_one_behind_it_and_keeps_its_interruptions(
    tmp_path: Path,
) -> None:
    values = [math.nan if 50 <= step < 60 else float(step % 2) for step in range(200)]
    run = log_run(tmp_path / "run", [(step, {"loss": y}) for step, y in enumerate(values)])
    raw, smooth = panels(run, smooth=10)["panels"][0]["lines"]
    assert (raw["kind"], smooth["kind"]) == ("raw", "line")
    middle = [y for y in smooth["y"][20:180] if y is not None]
    assert all(0.4 < y < 0.6 for y in middle)
    assert raw["y"].count(None) == smooth["y"].count(None) == 1
