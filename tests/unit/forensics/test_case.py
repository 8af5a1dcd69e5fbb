"""The case of a step: what is calm, what jumped, and which step is meant when none is named."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.forensics.case import open_case, steps_in_question, steps_that_stand_out
from sonde.forensics.causes.learning_rate import first_jump
from sonde.records.layout import SPIKES, STEPS, RunLayout
from sonde.records.manifest import Manifest, write_manifest


def loss_of(step: int) -> float:
    return 3.0 + 0.1 * math.sin(step * 1.7)


def write_run(
    folder: Path, changes: dict[int, dict[str, Any]] | None = None, num: int = 80
) -> Path:
    """A run with so many recorded steps."""
    layout = RunLayout(folder)
    layout.records.mkdir(parents=True)
    write_manifest(folder, Manifest(run_id="r", created=1.0))
    lines = []
    for step in range(1, num + 1):
        record = {
            "type": "STEP",
            "step": step,
            "epoch": 1,
            "loss": loss_of(step),
            "weight": 100.0,
            "grad_norm": 1.0,
            "lr": 0.1,
        }
        lines.append(json.dumps(record | (changes or {}).get(step, {})))
    layout.record_file(STEPS, 0).write_text("\n".join(lines) + "\n")
    return folder


def write_spike(folder: Path, step: int, last: int, metric: str = "loss", **entry: Any) -> None:
    event = {
        "kind": "spike",
        "metric": metric,
        "first_step": step,
        "last_step": last,
        "num_bad": 1,
        "value": 9.0,
        "baseline": 3.0,
        "z": 20.0,
        "peak": 9.0,
        "peak_step": step,
    }
    record = {
        "type": "SPIKE",
        "version": 1,
        "step": step,
        "time": 1.0,
        "rank": 0,
        "event": event,
        "tokens": [],
    }
    record["steps"] = [{"step": step, "loss": loss_of(step), **entry}]
    with RunLayout(folder).record_file(SPIKES, 0).open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_an_ordinary_step_is_not_unusual(tmp_path: Path) -> None:
    case = open_case(write_run(tmp_path), 70)
    assert len(case.calm) == 64
    assert abs(case.loss_z) < 2
    assert not case.is_loss_unusual
    assert not case.is_event


def test_a_high_or_broken_loss_is_unusual(tmp_path: Path) -> None:
    run = write_run(
        tmp_path, {60: {"loss": 4.0}, 61: {"loss": "NaN", "skipped": "the gradient norm is nan"}}
    )
    assert open_case(run, 60).is_loss_unusual
    broken = open_case(run, 61)
    assert broken.loss_z == math.inf
    assert broken.is_skipped


def test_steps_of_an_event_and_skipped_ones_are_not_calm(tmp_path: Path) -> None:
    run = write_run(tmp_path, {40: {"skipped": "out of memory"}})
    write_spike(run, 50, 52)
    case = open_case(run, 70)
    assert {40, 50, 51, 52}.isdisjoint(step.step for step in case.calm)
    assert open_case(run, 51).is_loss_unusual


def test_without_a_step_the_newest_event_of_the_loss_is_asked_about_first(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_spike(run, 20, 22)
    write_spike(run, 50, 52)
    write_spike(run, 60, 60, metric="grad_norm")
    assert steps_in_question(run) == [50, 20, 60]


def test_steps_that_stand_out_are_offered_where_there_is_no_event(tmp_path: Path) -> None:
    run = write_run(tmp_path, {75: {"loss": 3.4}})
    assert steps_in_question(run) == []
    (first, z), (_, next_z) = steps_that_stand_out(run, 2)
    assert first == 75
    assert z > next_z


def test_a_step_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="recorded no step 99"):
        open_case(write_run(tmp_path), 99)


def test_a_run_that_recorded_nothing_has_no_case(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(run_id="r", created=1.0))
    with pytest.raises(SettingError, match="recorded no steps"):
        open_case(tmp_path, 1)


def test_the_first_recent_jump_of_the_learning_rate_is_found(tmp_path: Path) -> None:
    run = write_run(
        tmp_path, {step: {"lr": 0.5} for step in range(70, 81)} | {10: {"lr": 0.2}, 30: {"lr": 0.2}}
    )
    for step in (31, 75):
        case = open_case(run, step)
        assert first_jump(case) == (case.steps[30], 0.1)
    assert first_jump(open_case(run, 29)) is None  # step 10 belongs to the warm-up
    assert first_jump(replace(open_case(run, 75), step=135)) is None


def test_the_samples_that_an_event_recorded_are_known_by_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_spike(run, 50, 50, sample_ids=[["train", 7], ["train", 9]], sample_losses=[1.0, 8.0])
    case = open_case(run, 50)
    assert case.recorded_samples() == {0: [("train", 7), ("train", 9)]}
    assert case.recorded_sample_losses() == {("train", 7): 1.0, ("train", 9): 8.0}
    assert open_case(run, 49).recorded_samples() == {}


def test_an_event_of_a_step_that_was_made_again_with_another_outcome_is_over(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path)
    write_spike(run, 50, 52, loss=9.0, sample_ids=[["train", 7]])
    case = open_case(run, 50)
    assert not case.is_event
    assert case.recorded_samples() == {}
