"""Listens to `torch.nn.utils.clip_grad_value_`, for the check of clipped gradients."""

from typing import Any

from torch import Tensor

from sonde.recorder.hooks import norm_of_gradients, value_clipping


class ValueClipping:
    """Notes the norm that gradients have before they are clipped by value."""

    def __init__(self) -> None:
        self._norm: Any = None
        value_clipping.listen(self._note)

    def take_norm(self) -> Any:
        """Return the norm since the last call of this; None if nothing was clipped."""
        norm = self._norm
        self._norm = None
        return norm

    def close(self) -> None:
        """Listen no longer."""
        value_clipping.leave(self._note)

    def _note(self, parameters: list[Tensor]) -> None:
        self._norm = norm_of_gradients(parameters)
