"""metrics: averages and rates at every level at once.

    with metrics.aggregate("train"):            # the epoch
        for batch in batches:
            with metrics.aggregate("train_inner") as inner:     # the last few steps
                metrics.log_scalar("loss", loss, weight=num_tokens)
            if step % 100 == 0:
                logger.log(inner.get_smoothed_values())
                metrics.reset_meters("train_inner")

Any line of code can log; the value appears in every enclosing level and in `default`, the whole run. The guide is docs/metrics.md.
Inside: meter.py (what a meter is), meters.py, quantile.py, clocks.py, derived.py (the meters), aggregator.py (a level), stack.py (which are
active), logs.py and lookup.py (the functions), tensors.py and ranks.py (the two that need torch, loaded when first used).

The names of fairseq's meters stand for ours: `AverageMeter`, `SumMeter`, `TimeMeter`, `StopwatchMeter`, `MetersDict`.
"""

from typing import TYPE_CHECKING

from sonde.metrics.aggregator import Aggregator
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.derived import Derived
from sonde.metrics.logs import (
    log_custom,
    log_derived,
    log_scalar,
    log_scalar_sum,
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
from sonde.metrics.meters import Average, Maximum, Minimum, Sum
from sonde.metrics.quantile import Quantile
from sonde.metrics.stack import aggregate, get_active_aggregators

if TYPE_CHECKING:
    from sonde.metrics.ranks import over_ranks

AverageMeter, SumMeter, TimeMeter, StopwatchMeter, MetersDict = Average, Sum, Rate, Stopwatch, Aggregator

__all__ = [
    "Aggregator",
    "Average",
    "AverageMeter",
    "Derived",
    "Maximum",
    "Meter",
    "MetersDict",
    "Minimum",
    "Quantile",
    "Rate",
    "Stopwatch",
    "StopwatchMeter",
    "Sum",
    "SumMeter",
    "TimeMeter",
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
    "log_scalar_sum",
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
