"""Since when samples were skipped, from the events of a run."""

import json
from pathlib import Path
from typing import Any

from sonde.forensics.history import read_skip_history


def history(run: Path, *events: dict[str, Any]) -> list[tuple[list[int], int | None]]:
    (run / "records").mkdir(exist_ok=True)
    lines = [json.dumps({"type": "EVENT", "time": 0.0, "rank": 0, **event}) for event in events]
    (run / "records" / "events.rank0.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return [
        (entry.samples.samples("train").tolist(), entry.first_step)
        for entry in read_skip_history(run)
    ]


START = {"event": "start"}


def resume(step: int) -> dict[str, Any]:
    return {"event": "resume", "step": step}


def skip(*samples: int) -> dict[str, Any]:
    return {"event": "skip", "samples": {"train": list(samples)}}


def test_a_skip_counts_from_the_next_start_on(tmp_path: Path) -> None:
    assert history(tmp_path, START, skip(3), START, resume(40), skip(5)) == [([3], 41), ([5], None)]


def test_a_start_that_goes_back_further_takes_its_skips_along(tmp_path: Path) -> None:
    assert history(
        tmp_path, START, skip(3), START, resume(40), START, resume(20), START, resume(60)
    ) == [([3], 21)]


def test_a_start_from_the_beginning_skips_from_the_first_step_on(tmp_path: Path) -> None:
    assert history(tmp_path, START, skip(3), START) == [([3], 1)]


def test_a_run_without_events_or_with_odd_ones_has_no_history(tmp_path: Path) -> None:
    assert read_skip_history(tmp_path) == []
    assert history(tmp_path, {"event": "skip"}, {"event": "resume", "step": "x"}, START) == []


def test_a_step_before_is_made_with_the_samples_and_one_after_without(tmp_path: Path) -> None:
    history(tmp_path, START, skip(3), START, resume(40))
    (one,) = read_skip_history(tmp_path)
    assert [one.is_in_force(step) for step in (1, 40, 41, 99)] == [False, False, True, True]
