"""The functions that training code calls: each reaches every aggregator that is active where it is called.

A meter is made by the first call that names its key; that call's priority and rounding stay. Values may be numbers or one-element tensors;
a tensor is neither read nor kept, so nothing here waits for a device. Costs: `log_scalar` of a float takes about 0.6 µs of CPU here
through three levels, its share of the folding included (benchmarks/metrics.py).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sonde.errors import SettingError
from sonde.metrics.aggregator import Aggregator
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.derived import Derived
from sonde.metrics.inlet import LOCK, tick
from sonde.metrics.meter import Meter
from sonde.metrics.stack import ACTIVE, get_active_aggregators

MeterT = TypeVar("MeterT", bound=Meter)


def log_scalar(
    key: str,
    value: object,
    weight: object = 1,
    priority: int = 10,
    round: int | None = None,  # noqa: A002
) -> None:
    """Add a value to a weighted average. With weight 0 only the latest value is shown (a learning rate)."""
    frame = ACTIVE.get()
    inlet = frame.inlets.get(key)
    if inlet is None:
        inlet = frame.levels.open_inlet(key, priority, round)
    if type(value) is float and (type(weight) is int or type(weight) is float):
        numbers = inlet.numbers
        numbers.append((value, weight, tick()))
        if len(numbers) >= inlet.limit:
            inlet.drain()
    else:
        inlet.push(value, weight)


def log_derived(
    key: str,
    function: Callable[[Mapping[str, Meter]], float],
    priority: int = 20,
    round: int | None = None,  # noqa: A002
) -> None:
    """Show `function(meters)`, computed in each aggregator from its own meters whenever it is read."""
    for aggregator in get_active_aggregators():
        make = functools.partial(Derived, function, aggregator.meters, priority=priority, round=round)
        _meter(aggregator, key, Derived, make).update(function)


def log_speed(key: str, value: object, priority: int = 30, round: int | None = None) -> None:  # noqa: A002
    """Count `value` things per second. The first call only starts the clock."""
    for aggregator in get_active_aggregators():
        _meter(aggregator, key, Rate, lambda: Rate(priority=priority, round=round)).update(value)


def log_start_time(key: str, priority: int = 40, round: int | None = None) -> None:  # noqa: A002
    """Start a stopwatch in every active aggregator."""
    for aggregator in get_active_aggregators():
        _meter(aggregator, key, Stopwatch, lambda: Stopwatch(priority=priority, round=round)).start()


def log_stop_time(key: str, weight: object = 0.0) -> None:
    """Stop it where it was started. With weights it shows seconds per unit of weight, without them the total."""
    for aggregator in get_active_aggregators():
        meter = aggregator.get_meter(key)
        if isinstance(meter, Stopwatch):
            meter.stop(weight)


def log_custom(new_meter: Callable[[], Meter], key: str, *args: Any, priority: int = 50, **kwargs: Any) -> None:
    """Update any other meter with `args` and `kwargs`, e.g. `log_custom(Maximum, "grad_norm_max", norm)`."""

    def make() -> Meter:
        meter = new_meter()
        if not isinstance(meter, Meter):
            raise SettingError(f"log_custom needs a function that makes a meter, but got a {type(meter).__name__}")
        meter.priority = priority
        return meter

    for aggregator in get_active_aggregators():
        _meter(aggregator, key, Meter, make).update(*args, **kwargs)  # type: ignore[type-abstract]  # only the kind to look for


def _meter(aggregator: Aggregator, key: str, expected: type[MeterT], make: Callable[[], MeterT]) -> MeterT:
    meter = aggregator.get_meter(key)
    if meter is None:
        with LOCK:
            meter = aggregator.get_meter(key)
            if meter is None:
                meter = make()
                aggregator.add_meter(key, meter)
    if not isinstance(meter, expected):
        raise SettingError(
            f"{key!r} is already a {meter.kind} in the aggregator {aggregator.name!r}, not a {expected.kind}",
            hint="use another key",
        )
    return meter
