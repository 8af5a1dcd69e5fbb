"""Ranks mend a run together: the result is the one by hand, also after all of them are killed in
the middle of it.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from healing_runs import BadRun, bad_run, final_state
from rank_group import run_ranks
from small_corpus import prepare_corpus

from sonde.errors import SettingError, SondeError
from sonde.forensics.verdict import Verdict
from sonde.heal.decision import Heal, read_history
from sonde.heal.supervisor import train_healing
from sonde.ranks import found_by_rank_0

NUM_RANKS = 2
CHECKPOINT = 8
"""On two ranks the bad batch is part of update 9."""


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BadRun:
    return bad_run(
        tmp_path,
        prepare_corpus(tmp_path, num=120),
        monkeypatch,
        max_updates=14,
        timeout_seconds=10.0,
    )


def heal_on_ranks(bad: BadRun) -> None:
    def work(_: int) -> str:
        random.seed(5)  # which a fork draws anew
        return train_healing(bad.settings, bad.directory, Heal(max_times=2, diagnose=bad.blame))

    assert run_ranks(NUM_RANKS, work) == ["max_updates: 14 steps were made"] * NUM_RANKS


def check(bad: BadRun) -> None:
    (act,) = read_history(bad.directory).acts
    assert (act.kind, act.checkpoint, act.call.first_step) == ("skip samples", CHECKPOINT, 9)

    def by_hand(_: int) -> str:
        random.seed(5)
        return str(bad.by_hand(checkpoint=CHECKPOINT))

    assert final_state(bad.directory) == final_state(Path(run_ranks(NUM_RANKS, by_hand)[0]))


@pytest.mark.slow
def test_two_ranks_mend_a_run_together(bad: BadRun) -> None:
    heal_on_ranks(bad)
    check(bad)


@pytest.mark.slow
def test_all_ranks_killed_in_the_diagnosis_complete_it_when_they_are_started_again(
    bad: BadRun,
) -> None:
    pids = bad.folder / "pids"
    pids.mkdir()

    def killing(run: Path, step: int) -> Verdict:
        """Rank 0 dies and takes the others with it, as torchrun does."""
        others = [path for path in pids.iterdir() if path.name != "0"]
        for pid in [int(path.read_text()) for path in others] + [os.getpid()]:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError

    def work(rank: int) -> None:
        random.seed(5)
        (pids / str(rank)).write_text(json.dumps(os.getpid()))
        train_healing(bad.settings, bad.directory, Heal(max_times=2, diagnose=killing))

    run_ranks(NUM_RANKS, work, killed=range(NUM_RANKS))
    assert read_history(bad.directory).call is not None
    heal_on_ranks(bad)
    check(bad)


@pytest.mark.slow
def test_what_rank_0_finds_or_raises_is_found_or_raised_on_every_rank() -> None:
    def found() -> dict[str, int]:
        time.sleep(0.3)  # the others are there first
        return {"answer": 42}

    def failing() -> None:
        raise SettingError("it is not so", cause="because", hint="look")

    def work(_: int) -> list[str]:
        sentences = [str(found_by_rank_0(found)), str(found_by_rank_0(found))]
        try:
            found_by_rank_0(failing)
        except SondeError as error:
            sentences.append(f"{error.message}, {error.cause}, {error.hint}")
        return sentences

    assert (
        run_ranks(NUM_RANKS, work)
        == [["{'answer': 42}"] * 2 + ["it is not so, because, look"]] * NUM_RANKS
    )
