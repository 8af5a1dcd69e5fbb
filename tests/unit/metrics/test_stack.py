import asyncio
import contextvars
import threading
from collections.abc import Iterator

import pytest

from sonde import metrics
from sonde.errors import SettingError


def _active() -> list[str | None]:
    return [aggregator.name for aggregator in metrics.get_active_aggregators()]


def test_levels_nest_to_any_depth() -> None:
    def descend(depth: int) -> None:
        with metrics.aggregate(f"level{depth}"):
            metrics.log_scalar("depth", depth)
            if depth < 50:
                descend(depth + 1)

    descend(1)
    assert metrics.get_smoothed_value("level1", "depth") == 25.5
    assert metrics.get_smoothed_value("level50", "depth") == 50
    assert _active() == ["default"]


def test_a_decorated_function_logs_into_its_level_at_every_call() -> None:
    @metrics.aggregate("valid", new_root=True)
    def validate(loss: float) -> float:
        """Says so."""
        metrics.log_scalar("loss", loss)
        return loss * 2

    assert validate(1.0) == 2.0
    assert validate(2.0) == 4.0
    assert validate.__doc__ == "Says so."
    assert metrics.get_smoothed_values("valid") == {"loss": 1.5}
    assert metrics.get_smoothed_values("default") == {}


def test_a_decorated_function_may_call_itself() -> None:
    @metrics.aggregate("deep")
    def recurse(depth: int) -> None:
        metrics.log_scalar("depth", depth)
        if depth:
            recurse(depth - 1)

    recurse(3)
    meter = metrics.get_meter("deep", "depth")
    assert isinstance(meter, metrics.Average)
    assert meter.count == 4


def test_a_coroutine_function_can_be_decorated() -> None:
    @metrics.aggregate("served")
    async def serve(value: float) -> list[str | None]:
        await asyncio.sleep(0)
        metrics.log_scalar("value", value)
        return _active()

    async def both() -> list[list[str | None]]:
        return list(await asyncio.gather(serve(1.0), serve(3.0)))

    assert asyncio.run(both()) == [["default", "served"]] * 2
    assert metrics.get_smoothed_values("served") == {"value": 2.0}
    assert _active() == ["default"]


def test_a_generator_cannot_be_decorated() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(SettingError, match="generator"):
        metrics.aggregate("x")(numbers)


def test_one_aggregation_object_can_be_entered_again_inside_itself() -> None:
    level = metrics.aggregate()
    with level as outer:
        metrics.log_scalar("x", 1)
        with level as inner:
            metrics.log_scalar("x", 3)
        metrics.log_scalar("x", 5)
    assert outer.get_smoothed_values() == {"x": 3}
    assert inner.get_smoothed_values() == {"x": 3}
    assert _active() == ["default"]


def test_generators_that_leave_in_another_order_remove_only_their_own_level() -> None:
    def inside(name: str) -> Iterator[None]:
        with metrics.aggregate(name):
            yield

    first = inside("first")
    second = inside("second")
    next(first)
    next(second)
    assert _active() == ["default", "first", "second"]
    next(first, None)
    assert _active() == ["default", "second"]
    next(second, None)
    assert _active() == ["default"]


def test_an_anonymous_level_survives_the_end_of_the_one_around_it() -> None:
    def inside(found: list[metrics.Aggregator]) -> Iterator[None]:
        with metrics.aggregate() as aggregator:
            found.append(aggregator)
            metrics.log_scalar("x", 1.0)
            yield
            metrics.log_scalar("x", 3.0)

    found: list[metrics.Aggregator] = []
    first = inside(found)
    second = inside(found)
    for generator in (first, second, first, second):
        next(generator, None)
    assert [aggregator.get_smoothed_value("x") for aggregator in found] == [5 / 3, 7 / 3]
    whole = metrics.get_meter("default", "x")
    assert isinstance(whole, metrics.Average)
    assert whole.value == 2.0
    assert _active() == ["default"]


def test_a_new_thread_starts_with_the_default_level_alone() -> None:
    seen: list[list[str | None]] = []
    with metrics.aggregate("train"):
        plain = threading.Thread(target=lambda: seen.append(_active()))
        handed_on = threading.Thread(
            target=contextvars.copy_context().run, args=(lambda: seen.append(_active()),)
        )
        for thread in (plain, handed_on):
            thread.start()
            thread.join()
    assert seen == [["default"], ["default", "train"]]


def test_levels_of_threads_do_not_mix_and_no_value_is_lost() -> None:
    num_values = 3000
    barrier = threading.Barrier(4)

    def work(name: str) -> None:
        barrier.wait()
        with metrics.aggregate(name):
            for value in range(num_values):
                metrics.log_scalar("x", float(value))
                if value % 100 == 0:
                    metrics.get_smoothed_values("default")

    threads = [threading.Thread(target=work, args=(f"thread{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        meter = metrics.get_meter(f"thread{i}", "x")
        assert isinstance(meter, metrics.Average)
        assert (meter.count, meter.value) == (num_values, (num_values - 1) / 2)
    whole = metrics.get_meter("default", "x")
    assert isinstance(whole, metrics.Average)
    assert whole.count == 4 * num_values


def test_no_value_is_lost_when_a_thread_logs_into_an_anonymous_level_that_is_left() -> None:
    num_values = 2000

    def log_many() -> None:
        for _ in range(num_values):
            metrics.log_scalar("x", 1.0)

    for _ in range(5):
        metrics.reset()
        with metrics.aggregate() as level:
            thread = threading.Thread(target=contextvars.copy_context().run, args=(log_many,))
            thread.start()
        thread.join()
        for aggregator in (level, metrics.get_aggregator("default")):
            meter = aggregator["x"]
            assert isinstance(meter, metrics.Average)
            assert meter.count == num_values


def test_levels_of_asyncio_tasks_do_not_mix() -> None:
    async def task(name: str, value: float) -> None:
        with metrics.aggregate(name):
            for _ in range(3):
                metrics.log_scalar("x", value)
                await asyncio.sleep(0)

    async def both() -> None:
        with metrics.aggregate("outer"):
            await asyncio.gather(task("a", 1.0), task("b", 3.0))

    asyncio.run(both())
    shown = {name: metrics.get_smoothed_value(name, "x") for name in ("a", "b", "outer", "default")}
    assert shown == {"a": 1.0, "b": 3.0, "outer": 2.0, "default": 2.0}
