"""The loss scale of float16 training."""

from typing import Any, Final

_GROWTH_UPDATES: Final = 2000
_MAX_SCALE: Final = 2.0**24


class LossScale:
    """The loss scale of float16 training, the same on all ranks. Fixed at 1 unless `dynamic`.

    Small gradients underflow in float16, so the loss is multiplied before backward and the
    gradients are divided after it. The scale halves when the global gradient norm is not finite
    (that update is skipped) and doubles after 2000 good updates.
    """

    def __init__(self, *, dynamic: bool) -> None:
        self.is_dynamic = dynamic
        self.value = 2.0**16 if dynamic else 1.0
        self._num_good = 0

    def update(self, *, finite: bool) -> None:
        """Adjust a dynamic scale after an update; `finite` says whether its gradients were
        finite.
        """
        if not finite:
            self.value = max(self.value / 2, 2.0**-14)
            self._num_good = 0
            return
        self._num_good += 1
        if self._num_good == _GROWTH_UPDATES:
            self.value = min(self.value * 2, _MAX_SCALE)
            self._num_good = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {"value": self.value, "num_good": self._num_good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.value = state["value"]
        self._num_good = state["num_good"]
