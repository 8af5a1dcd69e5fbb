"""The functions that training code calls: each reaches every aggregator that is active where it is called.

A meter is made by the first call that names its key; that call's priority and rounding stay. Values may be numbers or one-element tensors;
nothing here waits for a device. Costs: `log_scalar` of a float takes about 0.6 µs of CPU here through three levels (benchmarks/metrics.py).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from sonde.errors import SettingError
from sonde.metrics.aggregator import Aggregator
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.derived import Derived, Function
from sonde.metrics.meter import LOCK, ForeignMeter, Meter, scalar_of
from sonde.metrics.meters import Average, Sum
from sonde.metrics.stack import ACTIVE

MeterT = TypeVar("MeterT", bound=Meter)


def log_scalar(
    key: str,
    value: object,
    weight: object = 1,
    priority: int = 10,
    round: int | None = None,  # noqa: A002  fairseq's name for it
) -> None:
    """Add a value to a weighted average. With weight 0 only the latest value is shown (a learning rate). None is nothing."""
    if type(value) is float and (type(weight) is int or type(weight) is float):
        try:
            product = value * weight
        except OverflowError:  # an integer too large for a float
            product = math.inf
        if product - product == 0.0:  # neither NaN nor infinite: what `update` does, without its calls
            for aggregator in ACTIVE.get().aggregators:
                meter = aggregator.by_key.get(key)
                if type(meter) is not Average:
                    meter = _average(aggregator, key, priority, round)
                # No lock, which would cost half as much again: the interpreter changes threads at calls and jumps, not here.
                meter._sum += product
                meter._count += weight
                meter._val = value
            return
    exact = None if value is None else (scalar_of(value, "value"), scalar_of(weight, "weight"))
    for aggregator in ACTIVE.get().aggregators:
        meter = _average(aggregator, key, priority, round)
        if exact is not None:
            meter.absorb(*exact)


def log_scalar_sum(key: str, value: object, priority: int = 10, round: int | None = None) -> None:  # noqa: A002  fairseq's name for it
    """Add a value to a sum."""
    for aggregator in ACTIVE.get().aggregators:
        _meter(aggregator, key, Sum, lambda: Sum(round), priority).update(value)


def log_derived(key: str, fn: Function, priority: int = 20, round: int | None = None) -> None:  # noqa: A002  fairseq's name for it
    """Show `fn(meters)`, computed in each aggregator from its own meters whenever it is read."""
    for aggregator in ACTIVE.get().aggregators:
        make = functools.partial(Derived, fn, aggregator, round)
        _meter(aggregator, key, Derived, make, priority).update(fn)


def log_speed(key: str, value: object, priority: int = 30, round: int | None = None) -> None:  # noqa: A002  fairseq's name for it
    """Count `value` things per second. The first call only starts the clock: what it counts happened before."""
    for aggregator in ACTIVE.get().aggregators:
        if key in aggregator.by_key:
            _meter(aggregator, key, Rate, Rate, priority).update(value)
        else:
            _meter(aggregator, key, Rate, lambda: Rate(round), priority)


def log_start_time(key: str, priority: int = 40, round: int | None = None) -> None:  # noqa: A002  fairseq's name for it
    """Start a stopwatch in every active aggregator."""
    for aggregator in ACTIVE.get().aggregators:
        _meter(aggregator, key, Stopwatch, lambda: Stopwatch(round), priority).start()


def log_stop_time(key: str, weight: object = 0.0, prehook: Callable[[], object] | None = None) -> None:
    """Stop it where it was started, after calling `prehook` (`torch.cuda.synchronize`, say).

    With weights it shows seconds per unit of weight, without them the total.
    """
    for aggregator in ACTIVE.get().aggregators:
        meter = aggregator.by_key.get(key)
        if isinstance(meter, Stopwatch):
            meter.stop(weight, prehook)


def log_custom(new_meter_fn: Callable[[], Any], key: str, *args: Any, priority: int = 50, **kwargs: Any) -> None:
    """Update any other meter with `args` and `kwargs`, e.g. `log_custom(Maximum, "grad_norm_max", norm)`."""

    def make() -> Meter:
        meter = new_meter_fn()
        return meter if isinstance(meter, Meter) else ForeignMeter(meter)

    for aggregator in ACTIVE.get().aggregators:
        _meter(aggregator, key, Meter, make, priority).update(*args, **kwargs)  # type: ignore[type-abstract]  # only the kind to look for


def _average(aggregator: Aggregator, key: str, priority: int, digits: int | None) -> Average:
    return _meter(aggregator, key, Average, lambda: Average(digits), priority)


def _meter(
    aggregator: Aggregator, key: str, expected: type[MeterT], make: Callable[[], MeterT], priority: int
) -> MeterT:
    with LOCK:
        meter = aggregator.by_key.get(key)
        if meter is None:
            meter = make()
            aggregator.add_meter(key, meter, priority)
    if not isinstance(meter, expected):
        raise SettingError(
            f"{key!r} is already a {meter.kind} in the aggregator {aggregator.name!r}, not a {expected.kind}",
            hint="use another key",
        )
    return meter
