"""`Aggregator`: the meters of one level (a step, an epoch, the run), as a mapping in display order.

Keys that begin with an underscore are kept but not shown. The state is plain data:

    {"meters": [{"key": "loss", "kind": "average", "priority": 10, "round": 3, "state": {…}}, …]}

`Derived`: a value computed on reading from the other meters of the same aggregator, e.g. perplexity
from loss. The function sees only meters that have data: asking for one without data raises
KeyError, and the derived value then has no data either. Any other exception is logged once and the
value shows as NaN, because a metric must never stop training.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from sonde.errors import SettingError, did_you_mean
from sonde.metrics.meter import LOCK, Meter, NumberMeter
from sonde.metrics.meters import Average, Maximum, Minimum, Quantile, Rate, Stopwatch, Sum

_logger = logging.getLogger("sonde.metrics")

Function: TypeAlias = Callable[[Mapping[str, Any]], float]
"""Computes a value from the meters of an aggregator."""

KINDS: Final[Mapping[str, Callable[[], Meter]]] = {
    make.kind: make for make in (Average, Sum, Maximum, Minimum, Quantile, Rate, Stopwatch)
}
"""The meters that can be created from their kind alone."""


class UnknownMetricError(SettingError, KeyError):
    """There is no aggregator or metric with this name. Also a KeyError, as in fairseq."""

    def __init__(self, name: str, known: Mapping[str, object], what: str) -> None:
        hint = did_you_mean(name, known, f"known are: {', '.join(sorted(known)) or 'none'}")
        super().__init__(f"there is no {what} {name!r}", hint=hint)


class Derived(NumberMeter):
    """A function of other meters. It holds no data of its own, so there is nothing to reset, save
    or merge.
    """

    kind = "derived"

    # fairseq's name for it
    def __init__(self, fn: Function, meters: Mapping[str, Meter], round: int | None = None) -> None:  # noqa: A002
        super().__init__(round)
        self._has_failed = False
        self._meters = meters
        self.update(fn)

    def update(self, fn: Function) -> None:
        """Use this function from now on."""
        if not callable(fn):
            raise SettingError(
                f"a derived metric needs a function of the other meters, but got {fn!r:.200}",
                hint='e.g. lambda meters: 2 ** meters["loss"].avg',
            )
        self.function = fn

    @property
    def has_data(self) -> bool:
        return self._compute() is not None

    @property
    def value(self) -> float:
        value = self._compute()
        return math.nan if value is None else value

    def _compute(self) -> float | None:
        try:
            # A derived value is asked only if the function uses it: two that use each other would
            # never end.
            with_data = {
                key: meter
                for key, meter in self._meters.items()
                if isinstance(meter, Derived) or meter.has_data
            }
            return float(self.function(with_data))
        except KeyError:
            return None
        except Exception as error:  # noqa: BLE001
            # (a user's function; a metric must not stop training)
            if not self._has_failed:
                self._has_failed = True
                _logger.warning(
                    "a derived metric shows as NaN because its function raised %r", error
                )
            return math.nan

    def reset(self) -> None:
        """Do nothing: the value follows the meters it is computed from."""


class Aggregator(Mapping[str, Meter]):
    """A set of meters by key.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:  # an Aggregator
        metrics.log_scalar("loss", 2.5)
    assert level.get_smoothed_values() == {"loss": 2.5}
    ```
    """

    def __init__(self, name: str | None = None) -> None:
        self.name: Final = name
        self.by_key: dict[str, Meter] = {}
        """The meters in creation order."""
        # States of kinds that only `log_custom` can create; they are loaded when it does.
        self._waiting: dict[str, dict[str, Any]] = {}

    def add_meter(self, key: str, meter: Meter, priority: int = 50) -> None:
        """Add a meter under a new key; lower priorities are shown first."""
        with LOCK:
            if type(key) is not str or key in self.by_key:
                raise SettingError(f"the key of a new meter must be a new string, but got {key!r}")
            row = self._waiting.pop(key, None)
            if row is not None and row["kind"] == meter.kind:
                meter.load_state_dict(row["state"])
            meter.priority = priority
            self.by_key[key] = meter

    def get_smoothed_value(self, key: str) -> float:
        """Return one value, rounded for display; NaN if it has no data."""
        if key not in self.by_key:
            raise UnknownMetricError(key, self.by_key, "metric")
        return self.by_key[key].smoothed_value

    def get_smoothed_values(self) -> dict[str, float]:
        """Return all values to show, in display order; `<key>_nonfinite` follows a key that
        received NaN or inf.
        """
        values: dict[str, float] = {}
        for key, meter in self.items():
            if not key.startswith("_") and meter.has_data:
                values[key] = meter.smoothed_value
                if meter.nonfinite and f"{key}_nonfinite" not in self.by_key:
                    values[f"{key}_nonfinite"] = meter.nonfinite
        return values

    def reset(self) -> None:
        """Reset every meter; keys are kept."""
        with LOCK:
            for meter in self.by_key.values():
                meter.reset()

    def clear(self) -> None:
        """Remove every meter."""
        with LOCK:
            self.by_key.clear()
            self._waiting.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON-compatible data. Derived values are functions and are left
        out.
        """
        with LOCK:
            rows = [
                {
                    "key": key,
                    "kind": meter.kind,
                    "priority": meter.priority,
                    "round": meter.round,
                    "state": meter.state_dict(),
                }
                for key, meter in self.by_key.items()
                if not isinstance(meter, Derived)
            ]
            return {"meters": [*rows, *self._waiting.values()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`. Your own meters are restored when `log_custom` next creates
        them.
        """
        with LOCK:
            self.clear()
            for row in state["meters"]:
                if row["kind"] in KINDS:
                    meter = KINDS[row["kind"]]()
                    meter.round = row["round"]
                    meter.load_state_dict(row["state"])
                    self.add_meter(row["key"], meter, row["priority"])
                else:
                    self._waiting[row["key"]] = dict(row)

    def __getitem__(self, key: str) -> Meter:
        return self.by_key[key]

    def __iter__(self) -> Iterator[str]:
        with LOCK:
            return iter(sorted(self.by_key, key=lambda key: self.by_key[key].priority))

    def __len__(self) -> int:
        return len(self.by_key)

    # Levels compare by identity, whatever they hold.
    __eq__ = object.__eq__
    __hash__ = object.__hash__
