"""A weight of our own that shows whether autocast still uses the casts of weights as they were.

`torch.autocast` casts a weight once and keeps the cast until its outermost block ends. If that
block stands around the whole loop, every forward pass uses the weights from before the first
update. Our weight changes at every look: if its product does not, no weight is cast anew. Costs a
product of two numbers, and only where autocast is on between two updates.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sonde.forensics.checks.stale_casts import StaleCasts


class CastCanary:
    """Looks at the cast of a weight after each update."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._weight: Tensor | None = None
        self._num_looks = 0
        self._were_stale: list[Tensor] = []
        """One truth value for each look. They are read at the end: that would wait for a device."""

    def look(self) -> None:
        """Multiply the weight, and see whether the product is that of its value now."""
        is_on = torch.is_autocast_enabled(self._device.type)
        if not is_on or not torch.is_autocast_cache_enabled():
            return
        self._num_looks += 1
        with torch.no_grad():
            if self._weight is None:
                self._weight = torch.zeros(1, 1, device=self._device, requires_grad=True)
            self._weight.fill_(self._num_looks)
            product = F.linear(torch.ones(1, 1, device=self._device), self._weight)
        self._were_stale.append(product != self._num_looks)

    def measured(self) -> StaleCasts:
        """Return what was seen."""
        num_stale = sum(int(was_stale) for was_stale in self._were_stale)
        return StaleCasts(num_looks=self._num_looks, num_stale=num_stale)
