"""Reading, resetting, saving and restoring aggregators by name, from anywhere."""

from collections.abc import Mapping
from typing import Any

from sonde.metrics.aggregator import Aggregator, UnknownMetricError
from sonde.metrics.meter import LOCK, Meter
from sonde.metrics.stack import NAMED, named


def get_aggregator(name: str) -> Aggregator:
    """The aggregator of this name; a KeyError when nobody has entered it."""
    aggregator = NAMED.get(name)
    if aggregator is None:
        raise UnknownMetricError(name, NAMED, "aggregator")
    return aggregator


def get_meters(name: str) -> Aggregator | None:
    """The aggregator of this name, or None."""
    return NAMED.get(name)


def get_meter(name: str, key: str) -> Meter | None:
    """One meter of one aggregator, or None."""
    return NAMED[name].get(key) if name in NAMED else None


def get_smoothed_value(name: str, key: str) -> float:
    """One number of one aggregator, rounded for display; a KeyError when there is none."""
    return get_aggregator(name).get_smoothed_value(key)


def get_smoothed_values(name: str) -> dict[str, float]:
    """All numbers of one aggregator, in display order; a KeyError when nobody has entered it."""
    return get_aggregator(name).get_smoothed_values()


def reset_meter(name: str, key: str) -> None:
    """One meter of one aggregator starts again; nothing happens when there is none."""
    meter = get_meter(name, key)
    if meter is not None:
        meter.reset()


def reset_meters(name: str) -> None:
    """All meters of one aggregator start again; nothing happens when there is none."""
    if name in NAMED:
        NAMED[name].reset()


def reset() -> None:
    """Forget every meter of every named aggregator, as at the start of the process."""
    with LOCK:
        for aggregator in NAMED.values():
            aggregator.clear()


def state_dict() -> dict[str, Any]:
    """The state of every named aggregator, as plain data that JSON can hold."""
    with LOCK:
        return {name: aggregator.state_dict() for name, aggregator in NAMED.items()}


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Restore every named aggregator exactly; those that `state` does not know are emptied. Active levels stay active."""
    with LOCK:
        reset()
        for name, aggregator_state in state.items():
            named(name).load_state_dict(aggregator_state)
