"""`Meter`: what every meter can do, and what it may be fed.

A meter of your own fills in `update`, `reset` and `smoothed_value`, as one written for fairseq does; an object that has these
three without being a `Meter` is taken too. `state_dict` and `load_state_dict` let it survive a restart, `merge` lets ranks add it up.
"""

import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias, final

from typing_extensions import override

from sonde.errors import SettingError

Scalar: TypeAlias = Any
"""A float, or a one-element tensor that stays on its device until it is read."""

LOCK: Final = threading.RLock()
"""Held while meters change or are read. One for all: updates are short."""


READ_AT_ONCE: Final = frozenset({"cpu", "mps"})
"""Devices whose tensors are read at once: it waits for nothing on the CPU, and Metal has no float64 to keep them in."""


def scalar_of(value: Any, what: str) -> Scalar:
    """Any one real number as a float, a tensor on a device as a copy that stays there, without its graph and safe from later in-place changes;
    SettingError for anything else."""
    torch = sys.modules.get("torch")  # no tensor exists before somebody imported it
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise SettingError(
                f"a metric is one real number, but got a tensor of shape {tuple(value.shape)} and type {value.dtype}",
                hint="reduce it first, e.g. value.mean()",
            )
        if value.device.type in READ_AT_ONCE:
            return float(value.item())
        return value.detach().to(torch.float64, copy=True).reshape(())
    try:
        return float(value)
    except OverflowError:  # an integer too large for a float
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"the {what} of a metric must be one real number, but got {value!r:.200}",
            hint="pass a number or a one-element tensor",
        ) from error


def storable(value: float | None) -> float | str | None:
    """A float as JSON can say it: NaN and the infinities become strings that `float` reads back."""
    return value if value is None or math.isfinite(value) else str(value)


class Meter(ABC):
    """One quantity of one aggregator."""

    kind: ClassVar[str] = "custom"
    """Its name in a state dict and between ranks."""

    round: int | None = None
    """Digits to show; None for all."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Take in something new."""

    @abstractmethod
    def reset(self) -> None:
        """Start again with nothing."""

    @property
    @abstractmethod
    def smoothed_value(self) -> float:
        """The quantity, rounded for display."""

    @property
    def value(self) -> float:
        """The quantity; NaN when there is no data."""
        return self.smoothed_value

    @property
    def has_data(self) -> bool:
        """Whether there is anything to show."""
        return True

    @property
    def nonfinite(self) -> int:
        """How many of the values taken in were NaN or infinite and therefore left out of `value`."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on later, as plain data that JSON can hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (as in fairseq, a meter may have no state)
        """Become the meter that `state_dict` described."""

    def merge(self, state: Mapping[str, Any]) -> None:  # noqa: B027  doing nothing is the default
        """Add what the `state_dict` of another rank's meter describes; without this method each rank keeps its own."""


class NumberMeter(Meter, ABC):
    """A meter whose quantity is `value`, a float."""

    __slots__ = ("round",)

    def __init__(self, round: int | None = None) -> None:  # noqa: A002  (the name users know from print)
        self.round = round
        self.reset()

    @property
    @abstractmethod
    @override
    def value(self) -> float: ...

    @property
    def avg(self) -> float:
        """The same; fairseq's name for it."""
        return self.value

    @property
    @override
    def smoothed_value(self) -> float:
        value = self.value
        return value if self.round is None or not math.isfinite(value) else round(value, self.round)


@final
class ForeignMeter(Meter):
    """A meter that somebody wrote for fairseq. Whatever else it has (`avg`, `sum`, …) is found here too."""

    kind = "foreign"

    def __init__(self, meter: Any) -> None:
        if not (callable(getattr(meter, "update", None)) and hasattr(type(meter), "smoothed_value")):
            raise SettingError(
                f"log_custom needs a function that makes a meter, but got a {type(meter).__name__}",
                hint="a meter has update(), reset() and smoothed_value",
            )
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._meter, name)

    @override
    def update(self, *args: Any, **kwargs: Any) -> None:
        self._meter.update(*args, **kwargs)

    @override
    def reset(self) -> None:
        self._meter.reset()

    @property
    @override
    def smoothed_value(self) -> float:
        value: float = self._meter.smoothed_value
        return value

    @override
    def state_dict(self) -> dict[str, Any]:
        return dict(self._meter.state_dict()) if hasattr(self._meter, "state_dict") else {}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if hasattr(self._meter, "load_state_dict"):
            self._meter.load_state_dict(state)
