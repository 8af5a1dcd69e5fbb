"""How often states are kept follows time and disk, unless the user says it."""

import logging
from pathlib import Path

import pytest
from rank_group import run_ranks
from recorder_loops import Model, Training, batches
from torch import nn

from sonde.errors import SettingError
from sonde.recorder import state_schedule
from sonde.recorder.budget import StatePlan
from sonde.recorder.options import RecorderOptions
from sonde.recorder.state_schedule import Interval, StateCost, plan_interval
from sonde.records.journal import read_events

PLAN = StatePlan(state_bytes=1_000, num_states=3)
LARGE = 1 << 40


def cost(*, stall: float = 0.0, step: float = 1.0, batch: int = 10) -> StateCost:
    """Return what states and steps cost."""
    return StateCost(stall_seconds=stall, step_seconds=step, batch_bytes=batch)


def test_a_state_that_takes_little_time_is_kept_every_200_steps() -> None:
    assert plan_interval(cost(stall=1.9), PLAN, LARGE, 200) == Interval(200, 3)
    assert plan_interval(cost(), PLAN, LARGE, 200) == Interval(200, 3)


def test_the_interval_doubles_until_states_take_one_percent_of_the_time() -> None:
    assert plan_interval(cost(stall=2.1), PLAN, LARGE, 200) == Interval(400, 3)
    assert plan_interval(cost(stall=30.0), PLAN, LARGE, 200) == Interval(3_200, 3)


def test_an_interval_is_shortened_only_if_twice_the_time_allows_it() -> None:
    assert plan_interval(cost(stall=3.5), PLAN, LARGE, 800) == Interval(800, 3)
    assert plan_interval(cost(stall=1.9), PLAN, LARGE, 800) == Interval(400, 3)
    assert plan_interval(cost(stall=0.9), PLAN, LARGE, 800) == Interval(200, 3)


def test_states_are_closer_where_the_batches_of_more_steps_do_not_fit() -> None:
    budget = 4 * PLAN.state_bytes + 3 * 60 * 10
    assert plan_interval(cost(), PLAN, budget, 200) == Interval(50, 3)


def test_fewer_states_are_kept_rather_than_batches_lost() -> None:
    budget = 2 * PLAN.state_bytes + 450 * 10
    assert plan_interval(cost(stall=4.0), PLAN, budget, 200) == Interval(400, 1)


def test_the_time_counts_if_batches_fit_in_no_way() -> None:
    assert plan_interval(cost(stall=4.0, batch=5_000), PLAN, 10_000, 200) == Interval(400, 1)


def test_a_disk_that_is_still_writing_is_given_more_time() -> None:
    assert plan_interval(cost(), PLAN, LARGE, 800, at_least=800) == Interval(800, 3)


def test_the_interval_of_the_user_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_schedule, "MAX_SHARE", 1e-9)
    options = RecorderOptions(state_every=10, keep_states=9)
    training = Training(tmp_path / "run", settings=options)
    train(training, 45)
    training.close()
    assert kept_after(tmp_path / "run") == [0, 10, 20, 30, 40]
    assert not list(read_events(tmp_path / "run", state_schedule.EVENT))


def test_another_interval_is_an_event_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sonde")
    monkeypatch.setattr(state_schedule, "START_EVERY", 4)
    monkeypatch.setattr(state_schedule, "MAX_SHARE", 1e9)
    training = Training(tmp_path / "run", settings=RecorderOptions())
    train(training, 10)
    monkeypatch.setattr(state_schedule, "MAX_SHARE", 1e-9)
    train(training, 10)
    training.close()
    changes = list(read_events(tmp_path / "run", state_schedule.EVENT))
    assert changes[0]["step"] == 12
    assert changes[0]["every"] > 1_000
    assert [text for text in caplog.messages if "a state is kept every" in text] == [
        text for text in caplog.messages if text.startswith("sonde: from step 12 on")
    ]


def test_the_opening_says_what_a_state_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sonde")
    Training(tmp_path / "run", settings=RecorderOptions(state_every=4, keep_states=2)).train(3)
    (opening,) = [text for text in caplog.messages if text.startswith("sonde: recording")]
    assert "copied in memory (76 kB) while training waits" in opening
    assert "of the time, the last 2, and the batches since" in opening


def test_the_reach_that_is_told_is_that_of_the_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sonde")
    options = RecorderOptions(max_bytes=500_000, keep_states=2, state_every=1_000)
    Training(tmp_path / "run", settings=options).train(3)
    (opening,) = [text for text in caplog.messages if text.startswith("sonde: recording")]
    steps = int(opening.rpartition(" up to ")[2].removesuffix(" steps"))
    assert 10 < steps < 60  # of 5.7 kB each, the first 16 kB, beside three states


def test_a_negative_interval_is_refused_with_its_value() -> None:
    with pytest.raises(SettingError, match="state_every is -1"):
        RecorderOptions(state_every=-1)


@pytest.mark.slow
def test_all_ranks_keep_the_same_states_however_slow_one_of_them_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_schedule, "START_EVERY", 4)
    monkeypatch.setattr(state_schedule, "NUM_UNTIL_CHECK", 6)

    def work(rank: int) -> list[int]:
        steps = []
        training = Training(
            tmp_path / "run",
            model=Model,
            wrap=nn.parallel.DistributedDataParallel,
            settings=RecorderOptions(keep_states=9),
        )
        assert training.recorder is not None
        keeper = training.recorder.keeper
        noted = keeper.schedule.kept

        def kept(num_updates: int, stall_seconds: float, *, is_first: bool) -> None:
            steps.append(num_updates)
            noted(num_updates, stall_seconds * (1 + 50 * rank), is_first=is_first)

        keeper.schedule.kept = kept  # type: ignore[method-assign]
        train(training, 30)
        training.close()
        return [*steps, keeper.schedule.every]

    first, second = run_ranks(2, work)
    assert first == second
    assert first[-1] > 4


def train(training: Training, num: int) -> None:
    """Make updates, each of which is written before the next one."""
    assert training.recorder is not None
    for batch in batches(num):
        training.make(batch)
        training.recorder.flush()


def kept_after(run: Path) -> list[int]:
    """Return after how many updates the kept states of a run are."""
    return sorted(int(path.name[5:]) for path in (run / "flight" / "states").glob("step-*"))
