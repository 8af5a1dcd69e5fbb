"""The norm of all gradients together: computed at every update, to clip, to record, and to notice what is not finite.

On the CPU a small gradient goes through numpy's dot product, which costs a third of torch's norm and is closer to the exact value; a large one
through torch, which shares the work among its threads. Sharded gradients are summed over the ranks.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_MAX_SMALL: Final = 8192
"""Values of a small gradient: of these numpy's dot product makes no threads of its own, which would be in the way of torch's."""


@final
class GradientNorm:
    """Measures the gradients of some parameters. It divides them into small and large once, by what the parameters are."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._are_local = all(parameter.is_cpu and not isinstance(parameter, DTensor) for parameter in parameters)
        self._small = [parameter for parameter in parameters if _is_small(parameter)]
        self._large = [parameter for parameter in parameters if not _is_small(parameter)]

    def measure(self) -> float:
        """The norm now; every parameter has a gradient."""
        if not self._are_local:
            return _as_float(torch.nn.utils.get_total_norm([_gradient(parameter) for parameter in self._parameters]))
        squares = 0.0
        with np.errstate(all="ignore"):  # an overflow is seen in the norm
            for parameter in self._small:
                values: Any = _gradient(parameter).numpy().reshape(-1)
                squares += float(values.dot(values))
        if not self._large:
            return math.sqrt(squares)
        large = torch._foreach_norm([_gradient(parameter) for parameter in self._large])
        return math.hypot(math.sqrt(squares), *[norm.item() for norm in large])


def _is_small(parameter: nn.Parameter) -> bool:
    return parameter.numel() <= _MAX_SMALL and parameter.dtype in (torch.float32, torch.float64)


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient


def _as_float(norm: Tensor) -> float:
    """A norm as a number; that of sharded gradients is spread over the ranks."""
    return norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item()
