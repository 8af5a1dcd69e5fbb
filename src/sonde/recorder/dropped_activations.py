"""Forward passes that keep nothing for a backward pass, and give the same loss to the bit.

Without `torch.no_grad`: that chooses other kernels, and loops ask whether gradients are on. The
graph is made as always, but what it would save for backward is dropped at once. So a forward pass
needs the memory of a few layers instead of that of all activations.

A loss that takes gradients itself, such as a gradient penalty, asks for what was dropped: then
`was_asked` is true, and the pass is to be made again without this.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sonde.recorder.memory import bytes_of
from sonde.recorder.put_back import without_copies


class ActivationsDroppedError(RuntimeError):
    """A backward pass was begun, but nothing was saved for it."""


class DroppedActivations:
    """Drops what forward passes within its block save for a backward pass."""

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        """`weights` do not count as activations."""
        self.was_asked = False
        """Whether something that was dropped was asked for."""
        self.num_bytes = 0
        """How much would have been saved, at most: what is saved twice counts twice."""
        self._weights = {_address(weight) for weight in weights if bytes_of(weight)}
        hooks: Callable[..., Any] = torch.autograd.graph.saved_tensors_hooks
        self._hooks = hooks(self._drop, self._give_back)

    def __enter__(self) -> "DroppedActivations":
        self._hooks.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._hooks.__exit__(*raised)

    def _drop(self, tensor: Tensor) -> None:
        size = bytes_of(tensor)
        if size and _address(tensor) not in self._weights:
            self.num_bytes += size

    def _give_back(self, nothing: None) -> Tensor:
        del nothing
        self.was_asked = True
        raise ActivationsDroppedError("nothing is kept for a backward pass in a look at a scene")


def _address(tensor: Tensor) -> int:
    """Return where a tensor is in memory. A look at a scene must not take this for a write."""
    with without_copies():
        return tensor.data_ptr()
