"""Which of several events is meant, and what was told before it."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.case import steps_in_question
from sonde.forensics.causes import rules
from sonde.forensics.evidence import Evidence
from sonde.forensics.judge import judge_scene
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.verdict import Cause, Verdict, write_verdict
from sonde.records.journal import RECORDER_NOTICE
from sonde.run import Run


def run_with_events(folder: Path, losses: dict[int, float]) -> Path:
    """A run of 200 steps with these losses among calm ones."""
    with Run(folder) as run:
        spikes = run.spikes()
        for step in range(1, 201):
            spikes.observe(step, losses.get(step, 1.0 + 0.02 * math.sin(7 * step)))
    return folder


def name_a_cause(run: Path, step: int) -> None:
    cause = Cause(cause="odd_values", title="Odd.", confidence=0.88, evidence=(), advice=())
    write_verdict(run, Verdict(run_id="r", step=step, causes=(cause,), time=1.0))


def test_of_events_that_follow_one_another_the_one_with_a_named_cause_is_meant(
    tmp_path: Path,
) -> None:
    run = run_with_events(tmp_path / "run", {120: 2.0, 124: 40.0, 180: 2.0})
    assert steps_in_question(run) == [180, 124, 120]
    name_a_cause(run, 120)
    assert steps_in_question(run) == [180, 120, 124]


@pytest.mark.parametrize(("step", "is_blamed"), [(72, False), (81, True), (150, True)])
def test_a_mistake_of_a_loop_explains_only_what_came_after_it(
    tmp_path: Path, step: int, is_blamed: bool
) -> None:
    with Run(tmp_path / "run") as run:
        run.event(RECORDER_NOTICE, what="check train_mode", message="sonde: In eval.", since=81)
    evidence = SimpleNamespace(case=SimpleNamespace(run=tmp_path / "run", step=step))
    finding = rules()["train_mode"].judge(cast("Evidence", evidence))
    assert (finding is not None) == is_blamed


@pytest.mark.parametrize(("before", "cause"), [(1.1, "bad_operation"), (2e9, "not_known")])
def test_an_operation_is_not_blamed_for_what_exploded_before(before: float, cause: str) -> None:
    scene = SceneEvidence(
        step=161,
        own=math.nan,
        is_exact=True,
        normal=1.0,
        loss_before=before,
        broken=BrokenNumbers(is_forward=True, module="rnn", operation="tanh", num_rows=8),
    )
    assert judge_scene(scene)[0].cause == cause


@pytest.mark.parametrize(("highest", "is_blamed"), [(0.1, True), (1.0, False)])
def test_a_rate_that_goes_back_to_where_it_was_is_not_blamed_at_the_scene(
    highest: float, is_blamed: bool
) -> None:
    scene = SceneEvidence(
        step=135,
        own=3.0,
        is_exact=True,
        normal=1.0,
        others=[(1.0, 2.8), (1.1, 2.9), (0.9, 3.0)],
        rates=[(132, (0.01,)), (133, (1.0,)), (134, (1.0,)), (135, (1.0,))],
        highest_rate=highest,
    )
    assert (judge_scene(scene)[0].cause == "learning_rate") == is_blamed
