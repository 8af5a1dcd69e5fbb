"""`Aggregator`: the meters of one level (a step, an epoch, the run), in display order.

It fits the small interface `Readings`. Keys that begin with an underscore are kept but not shown. Its state is plain data:

    {"meters": [{"key": "loss", "kind": "average", "priority": 10, "round": 3, "state": {…}}, …]}
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, final

from sonde.errors import SettingError, nearest
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.derived import Derived
from sonde.metrics.inlet import LOCK
from sonde.metrics.meter import Meter, StreamMeter
from sonde.metrics.meters import Average, Maximum, Minimum, Quantile, Sum

KINDS: Final[Mapping[str, Callable[[], Meter]]] = MappingProxyType(
    {
        Average.kind: Average,
        Sum.kind: Sum,
        Maximum.kind: Maximum,
        Minimum.kind: Minimum,
        Quantile.kind: Quantile,
        Rate.kind: Rate,
        Stopwatch.kind: Stopwatch,
    }
)
"""The meters that can be made from the name of their kind alone."""


def unknown_key(key: str, known: Mapping[str, object], where: str) -> SettingError:
    """The error for a name that is not there."""
    guess = nearest(key, known)
    return SettingError(
        f"there is no {where} {key!r}",
        hint=f"did you mean {guess!r}?" if guess else f"known are: {', '.join(sorted(known)) or 'none'}",
    )


@final
class Aggregator:
    """A set of meters by key."""

    __slots__ = ("_meters", "_name", "_waiting", "meters")

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._meters: dict[str, Meter] = {}
        self.meters: Mapping[str, Meter] = MappingProxyType(self._meters)
        # States of kinds that only `log_custom` can make; loaded when it does.
        self._waiting: dict[str, dict[str, Any]] = {}

    @property
    def name(self) -> str | None:
        """What it is called; None for an anonymous one."""
        return self._name

    def add_meter(self, key: str, meter: Meter) -> None:
        """Put a meter under a new key."""
        with LOCK:
            if type(key) is not str or key in self._meters:
                raise SettingError(f"the key of a new meter must be a new string, but got {key!r}")
            self._meters[key] = meter
            row = self._waiting.pop(key, None)
            if row is not None and row["kind"] == meter.kind:
                meter.load_state_dict(row["state"])

    def get_meter(self, key: str) -> Meter | None:
        """The meter under this key, or None."""
        return self._meters.get(key)

    def in_order(self) -> list[tuple[str, Meter]]:
        """All meters by priority, then by age."""
        with LOCK:
            return sorted(self._meters.items(), key=lambda item: item[1].priority)

    def get_smoothed_value(self, key: str) -> float:
        """One number, rounded for display; NaN when it has no data."""
        meter = self._meters.get(key)
        if meter is None:
            raise unknown_key(key, self._meters, "metric")
        return meter.smoothed_value

    def get_smoothed_values(self) -> dict[str, float]:
        """All numbers to show, in display order; `<key>_nonfinite` follows a key that has met NaN or infinities."""
        values: dict[str, float] = {}
        for key, meter in self.in_order():
            if not key.startswith("_") and meter.has_data:
                values[key] = meter.smoothed_value
                if meter.nonfinite and f"{key}_nonfinite" not in self._meters:
                    values[f"{key}_nonfinite"] = meter.nonfinite
        return values

    def reset(self) -> None:
        """Every meter starts again; keys stay."""
        for _, meter in self.in_order():
            meter.reset()

    def reset_meter(self, key: str) -> None:
        """One meter starts again; nothing happens when there is none."""
        meter = self._meters.get(key)
        if meter is not None:
            meter.reset()

    def clear(self) -> None:
        """Forget every meter. What waits in shared inlets goes to the other levels first."""
        with LOCK:
            for meter in self._meters.values():
                if isinstance(meter, StreamMeter):
                    meter.close_inlets()
            self._meters.clear()
            self._waiting.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything but derived values, which are functions, as plain data that JSON can hold."""
        with LOCK:
            rows = [
                {
                    "key": key,
                    "kind": meter.kind,
                    "priority": meter.priority,
                    "round": meter.round,
                    "state": meter.state_dict(),
                }
                for key, meter in self._meters.items()
                if not isinstance(meter, Derived)
            ]
            return {"meters": [*rows, *self._waiting.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` described. A meter of your own comes back when `log_custom` next makes it."""
        with LOCK:
            self.clear()
            for row in state["meters"]:
                if row["kind"] in KINDS:
                    meter = KINDS[row["kind"]]()
                    meter.priority, meter.round = row["priority"], row["round"]
                    meter.load_state_dict(row["state"])
                    self._meters[row["key"]] = meter
                else:
                    self._waiting[row["key"]] = dict(row)
