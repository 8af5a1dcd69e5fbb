"""What a report tells, gathered from whole, partial and damaged runs."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eventful_run import NUM_STEPS, SPIKE_STEP

from sonde.errors import RunNotFound
from sonde.records.layout import RunLayout
from sonde.records.reader import read_records
from sonde.report import markdown
from sonde.report.facts import RunFacts, gather
from sonde.report.html import page
from sonde.run import Run
from sonde.spikes.ledger import Ledger


def test_all_parts_of_an_eventful_run_are_there(facts: RunFacts) -> None:
    assert (facts.status, facts.last_step, facts.series.updates.num_skipped) == (
        "finished",
        NUM_STEPS,
        1,
    )
    assert [verdict.step for verdict in facts.verdicts] == [SPIKE_STEP]
    assert facts.phases == pytest.approx(
        {"waiting for data": 0.002, "forward": 0.2, "backward": 0.3, "optimizer": 0.05}
    )
    assert [checkpoint.step for checkpoint in facts.checkpoints] == [200, 260, NUM_STEPS]
    assert facts.checkpoints[0].about.distrusted
    assert facts.checkpoints[1].about.metrics == {"loss": 3.0}
    assert facts.skip_list.endswith("train 3\n")
    assert facts.problems == ("1 damaged line in steps.rank0.jsonl",)
    assert len(facts.curves["validation loss"]) == NUM_STEPS // 50


def test_an_event_has_its_samples_worst_first_with_the_heat_of_their_tokens(
    facts: RunFacts,
) -> None:
    (event,) = facts.events
    assert [sample.ranked.sample for sample in event.samples] == [3, 4, 0, 1, 2]
    assert event.num_samples == 5
    losses = event.samples[0].ranked.token_losses
    assert losses is not None
    assert len(losses) == len(event.samples[0].token_texts)
    assert (event.heat(event.cool), event.heat(event.hot), event.heat(math.nan)) == (0, 9, 9)
    assert event.heat((event.cool + event.hot) / 2) == 4
    # the median of its tokens: more than the 2.3 that was expected of the step
    assert event.cool == 3.0


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        gather(tmp_path)


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    with Run(tmp_path / "run"):
        facts = gather(tmp_path / "run")
    assert facts.status == "running"
    assert (facts.curves, facts.events, facts.verdicts, facts.problems) == ({}, (), (), ())
    for text in (page.render_html(facts), markdown.render_markdown(facts)):
        assert "No loss was recorded." in text
        assert "No events were recorded." in text


def test_damage_is_said_and_the_rest_is_told(eventful_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(eventful_run, tmp_path / "run"))
    layout = RunLayout(run)
    layout.manifest.write_text("{")
    layout.verdict(SPIKE_STEP).write_text("{")
    layout.verdict(7).write_bytes(b"\xff")
    (layout.checkpoints / "step-000000000200" / "state.json").write_text("no")
    layout.record_file("spikes", 0).write_bytes(b'{"type":"SPIKE","step":"x"}\n\0\0\nnonsense\n')
    facts = gather(run)
    assert facts.status == "damaged"
    assert facts.verdicts == ()
    assert "loss" in facts.curves
    told = "\n".join(facts.problems)
    for part in (
        "run.json",
        "verdict-300",
        "verdict-7",
        "after 200 steps",
        "spikes.rank0.jsonl",
        "steps.rank0.jsonl",
    ):
        assert part in told
    assert "Not everything could be read" in page.render_html(facts)
    assert "Not everything could be read" in markdown.render_markdown(facts)


def test_damaged_records_of_events_are_counted_and_the_others_are_shown(
    eventful_run: Path, tmp_path: Path
) -> None:
    records = list(read_records(RunLayout(eventful_run).record_file("spikes", 0)))
    (whole,) = (record for record in records if record["type"] == "SPIKE")
    changes: tuple[dict[str, Any], ...] = (
        {"steps": [7]},
        {"steps": [{"step": math.inf}]},
        {"tokens": [{"row": 0, "losses": ["x"]}]},
        {"tokens": 1.5},
        {"time": {}},
        {"step": None},
        {"event": {"kind": "spike"}},
    )
    with Run(tmp_path / "run") as run:
        for record in (*records, *({**whole, **change} for change in changes)):
            run.records("spikes").append(record)
        run.records("spikes").append({"type": "SPIKE_DATA", "datasets": {"train": "nowhere"}})
    facts = gather(tmp_path / "run")
    assert len(facts.events) == 1
    assert facts.problems == (f"{len(changes)} records of events could not be understood",)
    assert facts.events[0].samples[0].problem
    assert page.render_html(facts)


def test_of_many_events_the_worst_five_are_shown_with_their_samples(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        recorder = run.spikes()
        for step in range(900):
            recorder.observe(
                step,
                30.0 if step % 100 == 99 else 2.0 + step % 7 / 100,
                sample_ids=["a"],
                sample_losses=[1.0],
            )
        recorder.close()
    facts = gather(tmp_path / "run")
    assert len(facts.events) > 5
    assert sum(bool(event.samples) for event in facts.events) == 5
    assert "the run does not say which dataset the samples are from" in page.render_html(facts)


def test_the_worst_samples_over_all_epochs_are_told(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        ledger = Ledger(run.layout, 0)
        for step in range(1, 4):
            ledger.add(step, ["<b>essay</b>", "letter"], np.array([6.0, 0.0]))
        ledger.close()
    facts = gather(tmp_path / "run")
    assert [(row.history.sample, row.history.trend) for row in facts.worst] == [
        ("<b>essay</b>", "never learnt")
    ]
    shown = page.render_html(facts)
    written = markdown.render_markdown(facts)
    assert "Worst samples" in shown
    assert "&lt;b&gt;essay&lt;/b&gt;" in shown
    assert "never learnt" in written
