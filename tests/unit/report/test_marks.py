"""Everything that happened in a run, as one list."""

from pathlib import Path
from typing import Any

import pytest

from sonde.checkpoint.resume_report import EVENT, Finding, ResumeReport, Status
from sonde.forensics.verdict import Cause, Verdict, write_verdict
from sonde.records.journal import append_event
from sonde.report.facts import earlier_marks, gather, read_verdicts
from sonde.report.marks import Mark, read_marks, worst_marks
from sonde.run import Run
from sonde.spikes.spike_log import SpikeLog, read_spikes

SAMPLE = {
    "row": 3,
    "sample": ["train", 7],
    "loss": 6.0,
    "expected": 1.0,
    "z": 17.0,
    "num_tokens": 4,
    "token_losses": None,
}


def spike(step: int, last: int | None = None, **more: Any) -> dict[str, Any]:
    event = {
        "kind": "spike",
        "metric": "loss",
        "first_step": step,
        "last_step": last or step,
        "num_bad": 1,
        "value": 9.0,
        "baseline": 2.0,
        "z": 20.0,
        "peak": 9.5,
        "peak_step": last or step,
    }
    return {"type": "SPIKE", "step": step, "time": 100.0, "event": event, "steps": [], **more}


def verdict(step: int, title: str, **more: Any) -> Verdict:
    cause = Cause(cause="garbled_text", title=title, confidence=0.75)
    return Verdict(run_id="x", step=step, causes=(cause,), **more)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Run(tmp_path / "run"):
        pass
    return tmp_path / "run"


def marks_of(run: Path) -> list[Mark]:
    return read_marks(run, read_spikes(run), read_verdicts(run, []))


def record(run: Path, *records: dict[str, Any]) -> None:
    with Run(run) as opened:
        for written in records:
            opened.records("spikes").append(written)


def test_spikes_samples_and_verdicts_are_in_one_list_in_order(run: Path) -> None:
    sample = {"type": "SAMPLE", "step": 50, "time": 1.0, "samples": [SAMPLE]}
    record(run, spike(80, 82), sample)
    write_verdict(run, verdict(81, "the spike's"))
    write_verdict(run, verdict(50, "the sample's"))
    write_verdict(run, verdict(10, "nobody else's"))
    found = [(mark.step, mark.last, mark.kind, mark.cause) for mark in marks_of(run)]
    assert found == [
        (10, 10, "verdict", "nobody else's"),
        (50, 50, "sample", "the sample's"),
        (80, 82, "spike", "the spike's"),
    ]
    titles = [mark.title for mark in marks_of(run)]
    assert titles[1:] == ["1 sample stood out: loss 6, expected 1", "loss 9, expected 2"]
    assert [mark.confidence for mark in marks_of(run)] == [0.75, 0.75, 0.75]
    assert len(gather(run).events) == 3


def test_what_was_done_to_a_run_is_shown_and_not_counted(run: Path) -> None:
    append_event(run, "resume", step=40)
    append_event(run, "rollback", step=60, checkpoint=40)
    append_event(run, "skip", step=60, samples={"train": [3, 4]})
    append_event(run, "determinism", num_threads=1)
    found = [(mark.step, mark.kind, mark.title) for mark in marks_of(run)]
    assert found == [
        (40, "restart", "resumed after step 40"),
        (60, "rollback", "rolled back to step 40"),
        (60, "skip list", "2 samples added to the skip list"),
    ]
    assert gather(run).events == ()
    assert len(gather(run).marks) == 3


def test_an_event_of_a_new_kind_is_a_mark_if_it_says_what_it_is(run: Path) -> None:
    append_event(run, "quiet_failure", step=30, last_step=35, title="weights stopped moving", z=7.5)
    append_event(run, "quiet_failure", step="x", title="no step")
    append_event(run, "quiet_failure", step=31)
    append_event(run, "quiet_failure", step=2**60, title="too far")
    (mark,) = marks_of(run)
    assert (mark.kind, mark.step, mark.last) == ("quiet failure", 30, 35)
    assert (mark.title, mark.z, mark.is_wrong) == ("weights stopped moving", 7.5, True)
    assert [event.mark for event in gather(run).events] == [mark]


def test_damaged_events_are_passed_over(run: Path) -> None:
    append_event(run, "heal", phase="act", act={"kind": 3})
    append_event(run, "rollback", step=None, checkpoint=[])
    assert marks_of(run) == []


def test_a_mark_says_if_the_run_went_back_to_before_it(run: Path) -> None:
    record(run, spike(80), spike(120, time=300.0))
    append_event(run, "resume", step=40, time=200.0)
    append_event(run, "rollback", step=130, checkpoint=90, time=150.0)
    spikes = [mark for mark in marks_of(run) if mark.kind == "spike"]
    assert [mark.note for mark in spikes] == ["superseded: the run went back to step 40", ""]


def test_a_restart_that_nobody_recorded_is_seen_from_the_steps(run: Path) -> None:
    nothing = SpikeLog(spikes=(), datasets={}, num_bad=0)
    (mark,) = read_marks(run, nothing, [], repeated=[(61, 100)])
    assert (mark.kind, mark.step) == ("restart", 60)
    assert mark.title == "restarted: steps 61 to 100 were repeated"
    append_event(run, "resume", step=60)
    assert len(read_marks(run, nothing, [], repeated=[(61, 100)])) == 1


def test_of_too_many_marks_the_worst_stay_in_order() -> None:
    marks = [
        Mark(kind="spike", step=step, last=step, title="", z=float(step % 10))
        for step in range(1, 101)
    ]
    kept = worst_marks(marks, 10)
    assert [mark.step for mark in kept] == list(range(9, 100, 10))
    assert worst_marks(marks, 100) == marks


def test_earlier_attempts_keep_what_happened_in_them(run: Path) -> None:
    aside = run / "attempts" / "1"
    (aside / "records").mkdir(parents=True)
    record(run, spike(80))
    (run / "records" / "spikes.rank0.jsonl").rename(aside / "records" / "spikes.rank0.jsonl")
    write_verdict(aside, verdict(80, "of the first attempt"))
    (mark,) = earlier_marks(run)
    assert (mark.step, mark.attempt, mark.cause) == (80, 1, "of the first attempt")
    assert mark.note == "in attempt 1, which was started over"
    assert gather(run).earlier == (mark,)
    assert gather(run).marks == ()


@pytest.mark.parametrize(
    ("status", "is_wrong"), [("lost", True), ("changed", False), ("same", None)]
)
def test_a_restart_shows_what_it_did_not_restore(
    run: Path, status: Status, is_wrong: bool | None
) -> None:
    finding = Finding(what="moments", status=status, text="EMPTY")
    report = ResumeReport(step=200, from_step=200, claim="number", findings=[finding])
    append_event(run, EVENT, **report.as_details())
    found = [mark for mark in marks_of(run) if "EMPTY" in mark.title]
    assert [mark.is_wrong for mark in found] == ([] if is_wrong is None else [is_wrong])
    assert all(mark.step == 200 for mark in found)


def test_a_sure_cause_comes_before_single_samples_that_are_farther_off() -> None:
    sure = Mark(kind="jump", step=200, last=223, title="", z=18.0, cause="rows", confidence=0.9)
    samples = [
        Mark(kind="sample", step=201 + number, last=201 + number, title="", z=200.0)
        for number in range(5)
    ]
    assert worst_marks([sure, *samples], 1) == [sure]


def test_a_question_about_a_calm_step_is_no_event(run: Path) -> None:
    calm = Cause(cause="nothing_wrong", title="The step is like others.", confidence=0.5)
    write_verdict(run, Verdict(run_id="r", step=30, causes=(calm,)))
    (mark,) = [mark for mark in marks_of(run) if mark.step == 30]
    assert (mark.is_wrong, mark.cause) == (False, "")
    assert "The step is like others." in mark.title
