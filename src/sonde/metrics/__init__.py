"""metrics: averages and rates at every level at once.

    with metrics.aggregate("train"):            # the epoch
        for batch in batches:
            with metrics.aggregate("train_inner") as inner:     # the last few steps
                metrics.log_scalar("loss", loss, weight=num_tokens)
            if step % 100 == 0:
                logger.log(inner.get_smoothed_values())
                metrics.reset_meters("train_inner")

Any line of code can log; the value appears in every enclosing level and in `default`, the whole run. The guide is docs/metrics.md.
Inside: exact.py (sums), tally.py and buckets.py (what is remembered), meter*.py, clocks.py, derived.py (meters), inlet.py (where
values wait), aggregator.py and levels.py, stack.py (which are active), logs.py and lookup.py (the functions), tensors.py and ranks.py
(the two that need torch, loaded when first used).
"""

from typing import TYPE_CHECKING

from sonde.metrics.aggregator import Aggregator
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.derived import Derived
from sonde.metrics.logs import (
    log_custom,
    log_derived,
    log_scalar,
    log_speed,
    log_start_time,
    log_stop_time,
)
from sonde.metrics.lookup import (
    get_aggregator,
    get_meter,
    get_meters,
    get_smoothed_value,
    get_smoothed_values,
    load_state_dict,
    reset,
    reset_meter,
    reset_meters,
    state_dict,
)
from sonde.metrics.meter import Meter
from sonde.metrics.meters import Average, Maximum, Minimum, Quantile, Sum
from sonde.metrics.parts import Parts
from sonde.metrics.reading import Readings
from sonde.metrics.stack import aggregate, get_active_aggregators

if TYPE_CHECKING:
    from sonde.metrics.ranks import over_ranks

__all__ = [
    "Aggregator",
    "Average",
    "Derived",
    "Maximum",
    "Meter",
    "Minimum",
    "Parts",
    "Quantile",
    "Rate",
    "Readings",
    "Stopwatch",
    "Sum",
    "aggregate",
    "get_active_aggregators",
    "get_aggregator",
    "get_meter",
    "get_meters",
    "get_smoothed_value",
    "get_smoothed_values",
    "load_state_dict",
    "log_custom",
    "log_derived",
    "log_scalar",
    "log_speed",
    "log_start_time",
    "log_stop_time",
    "over_ranks",
    "reset",
    "reset_meter",
    "reset_meters",
    "state_dict",
]


def __getattr__(name: str) -> object:
    if name != "over_ranks":
        raise AttributeError(f"module 'sonde.metrics' has no attribute {name!r}")
    from sonde.metrics.ranks import over_ranks as function  # torch is loaded only now

    globals()[name] = function
    return function
