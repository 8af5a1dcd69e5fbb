"""What the field stick counts as noticed, named, misleading, silent and as an alarm."""

from typing import Any

import pytest
from benchmarks.field_cases.answers import names_of
from benchmarks.field_cases.declaration import Case, Job, control, failure
from benchmarks.field_cases.reading import (
    Gotten,
    count,
    problem_lines,
    resume_complaints,
    wrong_checks,
)

REPORT = """\
INFO:sonde:sonde: recording run: loss, gradient norm
WARNING:sonde:resumed at step 200 from out/checkpoint-200
  weights      as they were
  moments      EMPTY (128 of 128 tensors): the optimiser's state was not loaded
  rate         9.8e-05, was 1.5e-03: the schedule began again
  data         cannot tell: no sample was seen twice
iter 220: loss 2.0
  generators   a line of somebody else's
"""


def trained(job: Job) -> None:
    """Stand for a training that these tests never run."""
    raise AssertionError(job)


def verdict(cause: str, confidence: float) -> dict[str, Any]:
    return {"step": 110, "causes": [{"cause": cause, "confidence": confidence}]}


def case_of(accepted: str = "learning_rate", **changes: Any) -> Case:
    return failure(trained, "rate", accepted, onset=100, **changes)


def test_lines_of_sonde_that_tell_of_a_problem_are_told_from_information_and_other_lines() -> None:
    printed = (
        "INFO:sonde:sonde: recording run: loss\n"
        "sonde: recording run: loss\n"
        "iter 20: loss 3.0\n"
        "WARNING:sonde:step 130: loss 2.9, expected 2.0. The batch holds garbled text\n"
        "WARNING:sonde:step 131: loss 2.9, expected 2.0.\n"
        "WARNING:sonde:sonde: the model is in evaluation mode\n"
        "WARNING:lightning:step 3: something of Lightning's\n"
    )
    assert [step for step, _ in problem_lines(printed)] == [130, 131, None]


def test_a_resume_report_names_what_was_not_restored_and_only_that() -> None:
    assert set(resume_complaints(REPORT)) == {"resume_optimizer", "resume_schedule"}


def test_an_exact_resume_is_no_problem() -> None:
    printed = "sonde: resumed at step 200: everything as it was\n"
    assert not resume_complaints(printed)
    assert not list(problem_lines(printed))


def test_only_checks_that_say_wrong_count() -> None:
    document = {
        "results": [
            {"name": "causality", "status": "wrong"},
            {"name": "padding", "status": "cannot tell"},
        ]
    }
    assert wrong_checks(document) == ["causality"]
    assert wrong_checks(None) == []


@pytest.mark.parametrize(
    ("step", "is_noticed"), [(99, False), (100, True), (130, True), (131, False)]
)
def test_an_event_notices_a_failure_within_thirty_steps_of_its_onset(
    step: int, is_noticed: bool
) -> None:
    assert count(case_of(), Gotten(events=({"first_step": step},))).noticed is is_noticed
    assert count(case_of(), Gotten(events=({"step": step},))).noticed is is_noticed
    printed = f"WARNING:sonde:step {step}: loss 3, expected 2. The learning rate jumped.\n"
    assert count(case_of(), Gotten(printed=printed)).noticed is is_noticed


@pytest.mark.parametrize(("confidence", "is_named"), [(0.49, False), (0.5, True)])
def test_a_failure_is_named_by_an_accepted_first_cause_at_half_or_more(
    confidence: float, is_named: bool
) -> None:
    outcome = count(case_of(), Gotten(verdict=verdict("learning_rate", confidence)))
    assert outcome.named is is_named
    assert not outcome.misled


def test_a_failure_is_named_by_the_resume_report_and_by_the_check() -> None:
    resumed = count(case_of("resume_schedule", also_true="resume_optimizer"), Gotten(REPORT))
    assert resumed.named
    assert not resumed.misled
    checked = Gotten(check={"results": [{"name": "causality", "status": "wrong"}]})
    assert count(case_of("future_leak"), checked).named


def test_an_event_whose_kind_or_metric_is_an_accepted_answer_names_the_failure_in_time() -> None:
    event = {"kind": "series", "metric": "scaler_skips", "first_step": 110}
    case = case_of("scaler_skips")
    assert count(case, Gotten(events=(event,))).named
    assert not count(case, Gotten(events=({**event, "first_step": 150},))).named
    assert not count(case_of(), Gotten(events=(event,))).named


@pytest.mark.parametrize(
    ("cause", "confidence", "is_misleading"),
    [
        ("garbled_text", 0.5, True),
        ("garbled_text", 0.49, False),
        ("nothing_wrong", 0.7, True),
        ("nothing_wrong", 0.69, False),
        ("not_known", 0.9, False),
        ("stuck", 0.9, False),
    ],
)
def test_a_wrong_cause_misleads_and_so_does_a_sure_nothing(
    cause: str, confidence: float, is_misleading: bool
) -> None:
    gotten = Gotten(verdict=verdict(cause, confidence))
    assert bool(count(case_of(also_true="plateau"), gotten).misled) is is_misleading


def test_a_first_verdict_in_the_run_misleads_although_the_diagnosis_is_right() -> None:
    gotten = Gotten(
        first_verdicts=(verdict("hard_sample", 0.7),), verdict=verdict("learning_rate", 0.9)
    )
    outcome = count(case_of(), gotten)
    assert outcome.named
    assert outcome.misled


def test_a_sentence_that_blames_samples_misleads_where_none_is_to_blame() -> None:
    gotten = Gotten("WARNING:sonde:step 110: loss 3, expected 2. A few samples did it.\n")
    assert count(case_of(), gotten).misled
    assert not count(case_of("garbled_text"), gotten).misled


def test_the_right_cause_of_another_step_names_nothing_and_misleads() -> None:
    early = {**verdict("learning_rate", 0.9), "step": 99}
    outcome = count(case_of(), Gotten(verdict=early))
    assert not outcome.named
    assert outcome.misled
    late = {**verdict("hard_sample", 0.9), "step": 131}
    row = failure(trained, "rows", "odd_row", onset=100)
    assert count(row, Gotten(verdict=verdict("hard_sample", 0.9))).named
    assert not count(row, Gotten(verdict=late)).named


def test_silence_is_neither_noticed_nor_named_nor_misleading() -> None:
    assert count(case_of(), Gotten()).silent
    assert not count(case_of(), Gotten(verdict=verdict("nothing_wrong", 0.9))).silent


@pytest.mark.parametrize(
    ("cause", "confidence", "is_right"),
    [("not_known", 0.4, True), ("nothing_wrong", 0.6, True), ("hard_sample", 0.6, False)],
)
def test_where_nobody_could_see_the_failure_it_is_right_to_blame_nothing(
    cause: str, confidence: float, is_right: bool
) -> None:
    gotten = Gotten(verdict=verdict(cause, confidence))
    assert count(case_of(visible=False), gotten).named is is_right


def test_a_control_alarms_by_what_is_said_unasked_and_not_by_a_calm_verdict() -> None:
    calm = control(trained)
    asked = Gotten(verdict=verdict("learning_rate", 0.7))
    assert not count(calm, asked).alarms
    assert count(calm, asked).misled
    assert count(calm, Gotten("WARNING:sonde:step 9: loss 3, expected 2.\n")).alarms
    assert count(calm, Gotten(first_verdicts=(verdict("hard_sample", 0.3),))).alarms
    assert count(calm, Gotten(REPORT)).alarms
    assert not count(calm, Gotten(verdict=verdict("nothing_wrong", 0.9))).misled


def test_an_answer_that_is_not_in_the_table_stands_for_itself() -> None:
    assert names_of(["stuck", "rate_zero"]) == {"stuck", "no_rate", "learning_rate"}
