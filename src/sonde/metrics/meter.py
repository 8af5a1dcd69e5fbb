"""`Meter`: the interface of every meter, and the values it accepts.

Your own meter implements `update`, `reset` and `smoothed_value`, like one written for fairseq; any
object that has these three is accepted, even if it is not a `Meter`. With `state_dict` and
`load_state_dict` it survives a restart; with `merge` it can be summed over ranks.
"""

import math
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

from sonde.errors import SettingError

Scalar: TypeAlias = Any
"""A float, or a one-element tensor that stays on its device until it is read."""

LOCK: Final = threading.RLock()
"""Held while meters change or are read. One lock for all, because updates are short."""


READ_AT_ONCE: Final = frozenset({"cpu", "mps"})
"""Devices whose tensors are read immediately: on the CPU nothing has to wait, and Metal has no
float64 to keep them in.
"""


def scalar_of(value: Any, what: str) -> Scalar:
    """Return one real number as a float, or as a detached copy on its device if it is a device
    tensor.

    The copy is safe from later in-place changes. Raises SettingError for anything else.
    """
    torch = sys.modules.get("torch")  # no tensor can exist before torch is imported
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            raise SettingError(
                f"a metric is one real number, but got a tensor of shape {tuple(value.shape)} and"
                f" type {value.dtype}",
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
    """Return a float in JSON-compatible form: NaN and infinities become strings that `float` reads
    back.
    """
    return value if value is None or math.isfinite(value) else str(value)


class Meter(ABC):
    """One quantity of one aggregator."""

    kind: ClassVar[str] = "custom"
    """Its name in state dicts and between ranks."""

    round: int | None = None
    """Number of digits to show; None for all."""
    priority: int = 50
    """Its place in the display order: lower ones are shown first."""

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a new value."""

    @abstractmethod
    def reset(self) -> None:
        """Discard all data."""

    @property
    @abstractmethod
    def smoothed_value(self) -> float:
        """The quantity, rounded for display."""

    @property
    def value(self) -> float:
        """The quantity; NaN if there is no data."""
        return self.smoothed_value

    @property
    def has_data(self) -> bool:
        """True if there is anything to show."""
        return True

    @property
    def nonfinite(self) -> int:
        """Number of NaN or infinite inputs, which are left out of `value`."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Return the full state as JSON-compatible data."""
        return {}

    # (as in fairseq, a meter may have no state)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore from `state_dict`."""

    def merge(self, state: Mapping[str, Any]) -> None:  # noqa: B027  doing nothing is the default
        """Add the `state_dict` of another rank's meter; without this method, each rank keeps its
        own value.
        """


class NumberMeter(Meter, ABC):
    """A meter whose quantity is `value`, a float."""

    # (the name users know from print)
    def __init__(self, round: int | None = None) -> None:  # noqa: A002
        self.round = round
        self.reset()

    @property
    @abstractmethod
    def value(self) -> float: ...

    @property
    def avg(self) -> float:
        """The same as `value`; fairseq's name for it."""
        return self.value

    @property
    def smoothed_value(self) -> float:
        value = self.value
        return value if self.round is None or not math.isfinite(value) else round(value, self.round)


class ForeignMeter(Meter):
    """Wraps a meter written for fairseq. Its other attributes (`avg`, `sum`, …) are available here
    too.
    """

    kind = "foreign"

    def __init__(self, meter: Any) -> None:
        if not (
            callable(getattr(meter, "update", None)) and hasattr(type(meter), "smoothed_value")
        ):
            raise SettingError(
                f"log_custom needs a function that makes a meter, but got a {type(meter).__name__}",
                hint="a meter has update(), reset() and smoothed_value",
            )
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while being copied, it has no meter yet
            raise AttributeError(name)
        return getattr(self._meter, name)

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._meter.update(*args, **kwargs)

    def reset(self) -> None:
        self._meter.reset()

    @property
    def smoothed_value(self) -> float:
        value: float = self._meter.smoothed_value
        return value

    def state_dict(self) -> dict[str, Any]:
        return dict(self._meter.state_dict()) if hasattr(self._meter, "state_dict") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if hasattr(self._meter, "load_state_dict"):
            self._meter.load_state_dict(state)
