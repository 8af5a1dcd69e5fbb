"""`Derived`: a value computed from the other meters of the same aggregator when it is read, e.g. perplexity from loss.

The function sees only meters that have data, so asking for one that has none yet is a KeyError, and the derived value then has
no data either. Whatever else the function raises is reported once and shows as NaN: a metric never stops training.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from sonde.errors import SettingError
from sonde.metrics.meter import Meter
from sonde.metrics.parts import Parts

_logger = logging.getLogger("sonde.metrics")


@final
class Derived(Meter):
    """A function of other meters. It holds no data of its own: nothing to reset, save or reduce."""

    __slots__ = ("_has_failed", "function", "meters")

    kind = "derived"

    def __init__(
        self,
        function: Callable[[Mapping[str, Meter]], float],
        meters: Mapping[str, Meter],
        *,
        priority: int = 20,
        round: int | None = None,  # noqa: A002
    ) -> None:
        super().__init__(priority=priority, round=round)
        self.update(function)
        self.meters = meters
        self._has_failed = False

    def update(self, function: Callable[[Mapping[str, Meter]], float]) -> None:
        """Compute it with this function from now on."""
        if not callable(function):
            raise SettingError(
                f"a derived metric needs a function of the other meters, but got {function!r:.200}",
                hint='e.g. lambda meters: 2 ** meters["loss"].value',
            )
        self.function = function

    @property
    def has_data(self) -> bool:
        """Whether every meter the function asks for has data."""
        return self._compute() is not None

    @property
    def value(self) -> float:
        """What the function says; NaN when it cannot."""
        value = self._compute()
        return math.nan if value is None else value

    def _compute(self) -> float | None:
        try:
            return float(self.function(MetersWithData(self.meters)))
        except KeyError:
            return None
        except Exception as error:  # noqa: BLE001  (a user's function; a metric must not stop training)
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("a derived metric shows as NaN because its function raised %r", error)
            return math.nan

    def reset(self) -> None:
        """Nothing to do: it follows the meters it is computed from."""

    def fresh(self) -> "Derived":
        """The same function of the same meters."""
        return self.of(self.meters)

    def of(self, meters: Mapping[str, Meter]) -> "Derived":
        """The same function of other meters."""
        return Derived(self.function, meters, priority=self.priority, round=self.round)

    def parts(self) -> Parts:
        """Nothing."""
        return Parts()

    def add_parts(self, parts: Parts) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a function is not data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to do."""


@final
class MetersWithData(Mapping[str, Meter]):
    """A view of the meters that have data."""

    __slots__ = ("_meters",)

    def __init__(self, meters: Mapping[str, Meter]) -> None:
        self._meters = meters

    def __getitem__(self, key: str) -> Meter:
        meter = self._meters[key]
        if not meter.has_data:
            raise KeyError(key)
        return meter

    def __iter__(self) -> Iterator[str]:
        return (key for key, meter in self._meters.items() if meter.has_data)

    def __len__(self) -> int:
        return sum(1 for _ in self)
