import asyncio
import json
import math
import threading

import pytest

from sonde import metrics
from sonde.metrics import ranks


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("sonde.metrics.meters.time.perf_counter", clock)
    return clock


def test_a_rate_counts_from_when_it_was_made(clock: Clock) -> None:
    rate = metrics.Rate()
    clock.now += 2
    rate.update(100)
    clock.now += 2
    rate.update(300)
    assert (rate.value, rate.avg, rate.elapsed_time) == (100.0, 100.0, 4.0)
    rate.reset()
    assert not rate.has_data
    clock.now += 5
    rate.update(10)
    assert rate.value == 2.0


def test_a_restored_rate_does_not_count_the_time_it_was_away(clock: Clock) -> None:
    rate = metrics.Rate()
    rate.update(0)
    clock.now += 4
    rate.update(40)
    state = json.loads(json.dumps(rate.state_dict()))
    clock.now += 1_000_000
    restored = metrics.Rate()
    restored.load_state_dict(state)
    assert restored.value == 10.0
    clock.now += 4
    restored.update(0)
    assert restored.value == 5.0


def test_a_rate_without_time_is_nan(clock: Clock) -> None:
    rate = metrics.Rate()
    rate.update(1)
    rate.update(1)
    assert math.isnan(rate.value)


def test_rates_of_two_ranks_add_up_over_the_longer_time(clock: Clock) -> None:
    first = metrics.Rate()
    second = metrics.Rate()
    first.update(0)
    clock.now += 6
    second.update(0)
    clock.now += 4
    first.update(50)
    second.update(30)
    both = metrics.Rate()
    both.merge(first.state_dict())
    both.merge(second.state_dict())
    clock.now += 1000
    assert (both.value, both.elapsed_time) == (8.0, 10.0)


def test_a_reduced_rate_stands_still(clock: Clock) -> None:
    aggregator = metrics.Aggregator("x")
    rate = metrics.Rate()
    aggregator.add_meter("speed", rate)
    rate.update(0)
    clock.now += 2
    rate.update(10)
    reduced = ranks.over_ranks(aggregator)
    clock.now += 8
    assert reduced.get_smoothed_values() == {"speed": 5.0}
    assert aggregator.get_smoothed_values() == {"speed": 1.0}


def test_a_stopwatch_shows_its_total_until_a_lap_has_weight(clock: Clock) -> None:
    watch = metrics.Stopwatch()
    assert math.isnan(watch.value)
    for seconds in (1.0, 3.0):
        watch.start()
        clock.now += seconds
        watch.stop(weight=0)
    assert (watch.value, watch.sum, watch.count) == (4.0, 4.0, 0)
    watch.start()
    clock.now += 2.0
    watch.stop(weight=3)
    assert (watch.value, watch.sum, watch.avg) == (2.0, 6.0, 2.0)


def test_stopping_what_was_not_started_or_was_reset_meanwhile_does_nothing(clock: Clock) -> None:
    watch = metrics.Stopwatch()
    watch.stop(1)
    watch.start()
    watch.reset()
    clock.now += 1
    watch.stop(1)
    assert not watch.has_data


def test_a_lap_that_is_not_finite_is_counted() -> None:
    watch = metrics.Stopwatch()
    watch.update(1.0, weight=math.nan)
    watch.update(2.0, weight=4)
    watch.update(math.nan)
    assert (watch.nonfinite, watch.avg) == (2, 0.5)


def test_two_threads_can_time_the_same_thing_at_once(clock: Clock) -> None:
    watch = metrics.Stopwatch()
    watch.start()
    clock.now += 10

    def other() -> None:
        watch.stop()
        watch.start()
        clock.now += 1
        watch.stop()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert watch.sum == 1.0
    watch.stop()
    assert watch.sum == 12.0


def test_two_tasks_can_time_the_same_thing_at_once(clock: Clock) -> None:
    watch = metrics.Stopwatch()

    async def task(seconds: float) -> None:
        watch.start()
        await asyncio.sleep(0)
        clock.now += seconds
        watch.stop()

    async def both() -> None:
        await asyncio.gather(task(1.0), task(2.0))

    asyncio.run(both())
    assert watch.sum == 1.0 + 3.0


def test_log_functions_time_every_level_from_where_it_was_started() -> None:
    with metrics.aggregate("outer") as outer:
        metrics.log_start_time("work")
        with metrics.aggregate("inner") as inner:
            metrics.log_stop_time("work", weight=1)
    assert outer.get_smoothed_value("work") > 0
    assert "work" not in inner
