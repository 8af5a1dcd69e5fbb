"""`optimizer.step()`, without marks for a profiler that is not there.

torch wraps every optimiser's `step`, to open a range in the profiler and to call hooks: more than half of what a step of a small model costs. The
wrapper is left out only where nobody could tell: no profiler runs, no hook is registered (on this optimiser or on all of them), and nobody
has put another `step` on the object, as torch's own schedulers do.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch.optim import optimizer as torch_optimizer


def _inside(step: Any) -> Callable[[Any], object] | None:
    """What torch's wrapper wraps, if this is one: told by its code, which every such wrapper shares and no other function has."""
    known = torch.optim.Optimizer.profile_hook_step(lambda _: None)
    is_wrapper = getattr(step, "__code__", None) is known.__code__
    return getattr(step, "__wrapped__", None) if is_wrapper else None


@final
class OptimizerStep:
    """Steps one optimiser."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._inner = _inside(type(optimizer).step)

    def take(self) -> None:
        """One step."""
        if self._inner is None or self._is_watched():
            self._optimizer.step()
        else:
            self._inner(self._optimizer)

    def _is_watched(self) -> bool:
        optimizer = self._optimizer
        return bool(
            "step" in optimizer.__dict__
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or torch._C._autograd._profiler_enabled()
        )
