"""The loss scale of float16 training: as large as the gradients allow, decided the same on all ranks.

Small gradients vanish in float16, so the loss is multiplied before backward and the gradients are divided after it. The scale
halves when the global gradient norm is not finite (that update is skipped) and doubles after 2000 good updates. The decision
uses the norm over all ranks, so ranks cannot disagree.
"""

from typing import Any, Final, final

_GROWTH_UPDATES: Final = 2000
_MAX_SCALE: Final = 2.0**24


@final
class LossScale:
    """A loss scale; 1 and fixed unless `dynamic`."""

    def __init__(self, *, dynamic: bool) -> None:
        self.is_dynamic = dynamic
        self.value = 2.0**16 if dynamic else 1.0
        self._num_good = 0

    def update(self, *, finite: bool) -> None:
        """Take in whether the gradients of an update were finite."""
        if not self.is_dynamic:
            return
        if not finite:
            self.value = max(self.value / 2, 2.0**-14)
            self._num_good = 0
            return
        self._num_good += 1
        if self._num_good == _GROWTH_UPDATES:
            self.value = min(self.value * 2, _MAX_SCALE)
            self._num_good = 0

    def state_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"value": self.value, "num_good": self._num_good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back from plain data."""
        self.value, self._num_good = state["value"], state["num_good"]
