"""Follow the gradient of one parameter: was it cleared before a backward pass added to it?"""

from torch import Tensor


class GradientFollower:
    """Follows a parameter by two hooks that only read."""

    def __init__(self, parameter: Tensor, *, keeps_all: bool) -> None:
        """`keeps_all`: note every backward pass, not only whether the gradient was cleared once."""
        self.parameter = parameter
        self.is_cleared = True
        """Whether the gradient was cleared before any of the backward passes that added to it."""
        self.has_added = False
        """Whether a backward pass has added to it. A gradient that the loop assigns itself never
        comes that way.
        """
        self._keeps_all = keeps_all
        self._was_there = False
        self._gives = False
        self._backwards: list[tuple[bool, bool]] = []
        self._handles = [
            parameter.register_hook(self._comes),
            parameter.register_post_accumulate_grad_hook(self._was_added),
        ]

    def begin_update(self) -> None:
        """Look anew: the next update is to clear its gradients."""
        self.is_cleared = False
        self.has_added = False

    def take_backwards(self) -> list[tuple[bool, bool]]:
        """Return the backward passes since the last call: whether a gradient was there before each,
        and whether it gave any.
        """
        taken = self._backwards
        self._backwards = []
        return taken

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _comes(self, gradient: Tensor) -> None:
        if self.is_cleared and not self._keeps_all:
            return
        before = self.parameter.grad
        self._was_there = before is not None and bool((before != 0).any())
        if self._keeps_all:
            self._gives = bool((gradient != 0).any())

    def _was_added(self, parameter: Tensor) -> None:
        del parameter
        self.has_added = True
        self.is_cleared = self.is_cleared or not self._was_there
        if self._keeps_all:
            self._backwards.append((self._was_there, self._gives))
