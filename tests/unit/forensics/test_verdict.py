"""A verdict as a file."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from sonde.errors import DamagedFile, RunError
from sonde.forensics.verdict import (
    NOTHING,
    UNKNOWN,
    Cause,
    Experiment,
    ModuleStatistics,
    ReplayResult,
    Suspect,
    Verdict,
    read_verdict,
    read_verdict_history,
    write_verdict,
)
from sonde.records.layout import RunLayout

VERDICT = Verdict(
    run_id="20261116-000000-abcdef",
    step=42,
    causes=(
        Cause(
            cause="garbled_text",
            title="sample 7 of train is garbled",
            confidence=0.9,
            evidence=("its loss is 12.5",),
            suspects=(Suspect(dataset="train", sample=7, loss=12.5, text="\x00<b>ä\ud800"),),
        ),
    ),
    experiments=(
        Experiment(
            question="which samples?", done="left out 7", found="calm", numbers={"loss": 2.5}
        ),
    ),
    modules=(
        ModuleStatistics(
            module="output", kind="gradient", norm=math.inf, max_abs=math.inf, num_nonfinite=3
        ),
    ),
    replay=ReplayResult(from_step=40, recorded_loss=0.1, replayed_loss=0.1, reproduced=True),
    event={"kind": "spike", "z": 31.0},
    seconds=1.5,
)


def test_a_verdict_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_verdict(tmp_path, VERDICT)
    back = read_verdict(tmp_path, 42)
    assert path == tmp_path / "forensics" / "verdict-42.json"
    assert back.causes[0].suspects[0].sample == 7
    assert back.replay == VERDICT.replay
    assert back.modules == VERDICT.modules
    assert back.experiments == VERDICT.experiments
    assert RunLayout(tmp_path).verdicts() == [(42, path)]


def test_a_step_without_verdict_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no verdict"):
        read_verdict(tmp_path, 3)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"format":"sonde-verdict","step":"x"}', b"\xff"]
)
def test_a_damaged_verdict_is_named(content: bytes, tmp_path: Path) -> None:
    path = write_verdict(tmp_path, VERDICT)
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"verdict-42\.json"):
        read_verdict(tmp_path, 42)


def named(cause: str, confidence: float, *, loss: float = 9.0, is_event: bool = True) -> Verdict:
    first = Cause(cause=cause, title=cause, confidence=confidence)
    event = {"kind": "spike", "first_step": 42} if is_event else None
    return replace(VERDICT, causes=(first,), loss=loss, event=event, place="replay")


@pytest.mark.parametrize(
    ("before", "now", "holds"),
    [
        (named("garbled_text", 0.9), named("hard_sample", 0.5), "garbled_text"),
        (named("hard_sample", 0.5), named("garbled_text", 0.9), "garbled_text"),
        (named("garbled_text", 0.9), named(NOTHING, 0.6, loss=3.0), "garbled_text"),
        (named("markup", 0.9), named("log", 0.5, loss=3.0, is_event=False), "markup"),
        (named("markup", 0.9), named("learning_rate", 0.6, loss=12.0), "learning_rate"),
        (named(UNKNOWN, 0.45), named(NOTHING, 0.6), NOTHING),
    ],
)
def test_a_weaker_verdict_never_replaces_a_stronger_one_and_all_are_kept(
    tmp_path: Path, before: Verdict, now: Verdict, holds: str
) -> None:
    write_verdict(tmp_path, before)
    write_verdict(tmp_path, now)
    assert read_verdict(tmp_path, 42).causes[0].cause == holds
    assert read_verdict_history(tmp_path, 42) == [now, before]
    assert read_verdict_history(tmp_path, 41) == []


def test_the_history_of_verdicts_survives_damaged_lines(tmp_path: Path) -> None:
    write_verdict(tmp_path, VERDICT)
    path = RunLayout(tmp_path).verdict_history
    path.write_bytes(b'{"step":1}\n' + b"\xff{\n" + path.read_bytes() + b'{"causes":[]')
    assert [verdict.step for verdict in read_verdict_history(tmp_path)] == [42]
