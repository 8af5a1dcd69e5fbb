"""Mending that is cut off anywhere is completed by the next start: with the same result, and
nothing done twice.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from fault_injection import KILLED, disk_calls_of, fault_at, kill, kill_after, run_in_child
from healing_runs import CHECKPOINT, BadRun, bad_run
from small_corpus import prepare_corpus

from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.skip_list import read_skip_list
from sonde.errors import RunError
from sonde.forensics.verdict import Verdict
from sonde.heal.decision import Heal, read_history
from sonde.heal.supervisor import Continuation, mend, train_healing
from sonde.records.layout import RunLayout

pytestmark = pytest.mark.slow


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BadRun:
    """A run that has called, and was stopped in the diagnosis."""
    bad = bad_run(tmp_path, prepare_corpus(tmp_path, num=120), monkeypatch)

    def interrupted(run: Path, step: int) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_healing(bad.settings, bad.directory, Heal(max_times=1, diagnose=interrupted))
    return bad


def outcome(run: Path, way: Continuation) -> Any:
    (act,) = read_history(run).acts
    states = CheckpointFolder(RunLayout(run).checkpoints).steps()
    skipped = read_skip_list(RunLayout(run).skip_list).samples("train").tolist()
    settings = {name: Path(value).name for name, value in way.settings.items()}
    return act.kind, act.checkpoint, act.skip, states, skipped, settings, way.start_over, way.stop


def test_a_kill_at_any_disk_call_of_mending_is_completed_by_the_next_start(called: BadRun) -> None:
    copies = called.folder / "copies"

    def copy(name: str) -> Path:
        return Path(shutil.copytree(called.directory, copies / name))

    whole = copy("whole")
    num_calls = len(disk_calls_of(lambda: mend(whole, Heal(max_times=1, diagnose=called.blame))))
    expected = outcome(whole, mend(whole, Heal(max_times=1, diagnose=called.blame)))
    assert expected[:2] == ("skip samples", CHECKPOINT)
    assert expected[3:6] == ([8, 12, 16], [called.bad], {"skip_list": "skip-list.txt"})
    for position in range(num_calls):
        for fault in (kill, kill_after):
            run = copy(f"{position}-{fault.__name__}")

            def cut_off(run: Path = run, position: int = position, fault: Any = fault) -> None:
                with fault_at(position, fault):
                    mend(run, Heal(max_times=1, diagnose=called.blame))

            assert run_in_child(cut_off) == KILLED
            assert outcome(run, mend(run, Heal(max_times=1, diagnose=called.blame))) == expected, (
                position
            )
            shutil.rmtree(run)


def test_mending_twice_does_nothing_the_second_time(called: BadRun) -> None:
    mend(called.directory, Heal(max_times=1, diagnose=called.blame))
    before = sorted(path.name for path in called.directory.rglob("*"))
    mend(called.directory, Heal(max_times=1, diagnose=called.blame))
    assert sorted(path.name for path in called.directory.rglob("*")) == before


def test_a_decision_that_cannot_be_written_is_not_carried_out(
    called: BadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.records.append.RecordFile.append", lambda *_: False)
    with pytest.raises(RunError, match="cannot be mended"):
        mend(called.directory, Heal(max_times=1, diagnose=called.blame))
    assert not RunLayout(called.directory).skip_list.exists()
