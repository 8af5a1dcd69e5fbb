"""`Levels`: aggregators that are active together, and the inlets they share.

The levels inside a named aggregator are kept, so that entering it again finds its inlets and folds nothing early.
"""

from typing import final

from sonde.errors import SettingError
from sonde.metrics.aggregator import Aggregator
from sonde.metrics.inlet import LOCK, Inlet
from sonde.metrics.meters import Average


def _average(aggregator: Aggregator, key: str, priority: int, round_: int | None) -> Average:
    meter = aggregator.get_meter(key)
    if meter is None:
        meter = Average(priority=priority, round=round_)
        aggregator.add_meter(key, meter)
    if not isinstance(meter, Average):
        raise SettingError(
            f"{key!r} is already a {meter.kind} in the aggregator {aggregator.name!r}, so no scalar can be logged there",
            hint="use another key",
        )
    return meter


@final
class Levels:
    """Aggregators that are active together, and the inlets of the keys that were logged into all of them at once."""

    __slots__ = ("_inside", "aggregators", "inlets")

    def __init__(self, aggregators: tuple[Aggregator, ...]) -> None:
        self.aggregators = aggregators
        self.inlets: dict[str, Inlet] = {}
        self._inside: dict[tuple[str, bool], Levels] = {}

    def inside(self, aggregator: Aggregator, new_root: bool) -> "Levels":
        """The levels within one more aggregator; those of a named one are kept for the next time."""
        if not new_root and aggregator in self.aggregators:
            return self
        aggregators = (aggregator,) if new_root else (*self.aggregators, aggregator)
        if aggregator.name is None:
            return Levels(aggregators)
        with LOCK:
            levels = self._inside.get((aggregator.name, new_root))
            if levels is None:
                levels = self._inside[aggregator.name, new_root] = Levels(aggregators)
            return levels

    def open_inlet(self, key: str, priority: int, round_: int | None) -> Inlet:
        """The inlet of averages under `key`, made now with the meters that are missing."""
        with LOCK:
            inlet = self.inlets.get(key)
            if inlet is None:
                sinks = tuple(_average(aggregator, key, priority, round_) for aggregator in self.aggregators)
                inlet = Inlet(sinks, home=self.inlets, key=key)
            return inlet

    def close(self) -> None:
        """Fold what waits: these levels will not be active again."""
        with LOCK:
            for levels in self._inside.values():
                levels.close()
            self._inside.clear()
            for inlet in tuple(self.inlets.values()):
                inlet.close()
