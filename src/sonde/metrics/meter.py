"""`Meter`: what every meter can do; `StreamMeter`: what those share that are fed one value at a time.

A meter's `value` is always a float; without data it is NaN and `has_data` says so. Values that wait in an inlet, or on
a device, are folded in before anything is read, reset or saved; only that may wait for a device.
"""

import builtins
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from typing_extensions import Self

from sonde.metrics.inlet import LOCK, Inlet
from sonde.metrics.parts import Parts
from sonde.metrics.tally import Tally

if TYPE_CHECKING:
    from sonde.metrics.tensors import DeviceParts

TallyT = TypeVar("TallyT", bound=Tally)

ANY_PRIORITY: Final = 50
"""Where a meter stands among others when nobody says."""


class Meter(ABC):
    """One quantity of one aggregator. To make a meter of your own, fill in the abstract methods and give it a `kind`."""

    __slots__ = ("priority", "round")

    kind: ClassVar[str]
    """Its name in a state dict and between ranks."""

    def __init__(self, *, priority: int, round: int | None) -> None:  # noqa: A002  (the name users know from print)
        self.priority = priority
        self.round = round

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take in something new."""

    @property
    @abstractmethod
    def has_data(self) -> bool:
        """Whether there is anything to show."""

    @property
    @abstractmethod
    def value(self) -> float:
        """The quantity; NaN when there is no data."""

    @property
    def smoothed_value(self) -> float:
        """`value`, rounded for display."""
        value = self.value
        return value if self.round is None or not math.isfinite(value) else builtins.round(value, self.round)

    @property
    def nonfinite(self) -> int:
        """How many of the values taken in were NaN or infinite and therefore left out of `value`."""
        return 0

    @abstractmethod
    def reset(self) -> None:
        """Start again with nothing."""

    @abstractmethod
    def fresh(self) -> Self:
        """An empty meter with the same settings."""

    @abstractmethod
    def parts(self) -> Parts:
        """The flat form, for exchange between ranks."""

    @abstractmethod
    def add_parts(self, parts: Parts) -> None:
        """Add the flat form of another meter of this kind."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on later, as plain data that JSON can hold."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the meter that `state_dict` described."""


class StreamMeter(Meter, ABC, Generic[TallyT]):
    """A meter that boils a stream of values down to a tally."""

    __slots__ = ("_inlets", "_on_device", "_own_inlet", "_tally")

    tally_type: type[TallyT]

    def __init__(self, *, priority: int = ANY_PRIORITY, round: int | None = None) -> None:  # noqa: A002
        super().__init__(priority=priority, round=round)
        self._tally = self.tally_type()
        self._on_device: dict[object, DeviceParts] = {}
        self._inlets: list[Inlet] = []
        self._own_inlet: Inlet | None = None

    def update(self, value: object, weight: object = 1) -> None:
        """Take one number or one-element tensor; a tensor is not read before the meter is."""
        if self._own_inlet is None:
            self._own_inlet = Inlet((self,))
        self._own_inlet.push(value, weight)

    def attach(self, inlet: Inlet) -> None:
        """From now on, drain this inlet before reading."""
        with LOCK:
            self._inlets.append(inlet)

    def detach(self, inlet: Inlet) -> None:
        """Forget an inlet that has been drained."""
        with LOCK:
            if inlet in self._inlets:
                self._inlets.remove(inlet)

    def close_inlets(self) -> None:
        """Fold what waits, here and in the other levels, and cut the connection."""
        with LOCK:
            for inlet in tuple(self._inlets):
                inlet.close()
            self._own_inlet = None

    def absorb(self, tally: TallyT) -> None:
        """Add the tally of a batch of numbers."""
        self._tally.merge(tally)

    def absorb_on_device(self, device: object, parts: "DeviceParts") -> None:
        """Add the tally of a batch of tensors of one device."""
        before = self._on_device.get(device)
        self._on_device[device] = parts if before is None else before.merged(parts)

    def settled(self) -> TallyT:
        """The tally of everything that was logged up to now. Reads what is on a device, and waits for it."""
        with LOCK:
            for inlet in self._inlets:
                inlet.drain()
            for parts in self._on_device.values():
                self._tally.add_parts(parts.read(), parts.tick)
            self._on_device.clear()
            return self._tally

    @property
    def has_data(self) -> bool:
        """Whether anything was logged, finite or not."""
        return self.settled().has_data

    @property
    def nonfinite(self) -> int:
        """How many values were NaN or infinite."""
        return self.settled().nonfinite

    def reset(self) -> None:
        """Start again with nothing; what waits goes to the other levels first."""
        with LOCK:
            for inlet in self._inlets:
                inlet.drain()
            self._on_device.clear()
            self._tally = self.tally_type()

    def fresh(self) -> Self:
        """An empty meter with the same settings."""
        return type(self)(priority=self.priority, round=self.round)

    def parts(self) -> Parts:
        """The flat form, for exchange between ranks."""
        return self.settled().parts()

    def add_parts(self, parts: Parts) -> None:
        """Add the flat form of another meter of this kind."""
        self.settled().add_parts(parts)

    def state_dict(self) -> dict[str, Any]:
        """The tally as plain data."""
        return self.settled().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the meter that `state_dict` described."""
        self.reset()
        self._tally.load_state_dict(state)
