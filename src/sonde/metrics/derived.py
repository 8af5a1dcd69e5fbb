"""`Derived`: a value computed from the other meters of the same aggregator when it is read, e.g. perplexity from loss.

The function sees only meters that have data, so asking for one that has none yet is a KeyError, and the derived value then has
no data either. Whatever else the function raises is reported once and shows as NaN: a metric never stops training.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, final

from typing_extensions import override

from sonde.errors import SettingError
from sonde.metrics.meter import Meter, NumberMeter

_logger = logging.getLogger("sonde.metrics")

Function: TypeAlias = Callable[[Mapping[str, Any]], float]
"""Computes a value from the meters of an aggregator."""


@final
class Derived(NumberMeter):
    """A function of other meters. It holds no data of its own: nothing to reset, save or add up."""

    __slots__ = ("_has_failed", "_meters", "function")

    kind = "derived"

    def __init__(self, fn: Function, meters: Mapping[str, Meter], round: int | None = None) -> None:  # noqa: A002  fairseq's name for it
        super().__init__(round)
        self._has_failed = False
        self._meters = meters
        self.update(fn)

    @override
    def update(self, fn: Function) -> None:
        """Compute it with this function from now on."""
        if not callable(fn):
            raise SettingError(
                f"a derived metric needs a function of the other meters, but got {fn!r:.200}",
                hint='e.g. lambda meters: 2 ** meters["loss"].avg',
            )
        self.function = fn

    @property
    @override
    def has_data(self) -> bool:
        return self._compute() is not None

    @property
    @override
    def value(self) -> float:
        value = self._compute()
        return math.nan if value is None else value

    def _compute(self) -> float | None:
        try:
            return float(self.function(_MetersWithData(self._meters)))
        except KeyError:
            return None
        except Exception as error:  # noqa: BLE001  (a user's function; a metric must not stop training)
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("a derived metric shows as NaN because its function raised %r", error)
            return math.nan

    @override
    def reset(self) -> None:
        """Nothing to do: it follows the meters it is computed from."""


@final
class _MetersWithData(Mapping[str, Meter]):
    """A view of the meters that have data."""

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
