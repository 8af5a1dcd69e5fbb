"""The gradient norm that the user's own clipping computes, overheard: `torch.nn.utils.clip_grad_norm_` and what is built on it.

While a recorder is open the function is wrapped; it does what it always did, and its result is noted. A loop that imported the function by name
before is not overheard: it can say `flight.grad_norm(norm)`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

_NAME: Final = "clip_grad_norm_"
_listeners: list[Callable[[Any], None]] = []


def listen(listener: Callable[[Any], None]) -> Callable[[], None]:
    """Let `listener` hear every norm; returns what ends that."""
    if not _listeners:
        _wrap()
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
            if not _listeners:
                _unwrap()

    return stop


def norm_of(optimizer: torch.optim.Optimizer) -> Tensor:
    """The norm of all gradients of an optimiser's parameters."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])


def _wrap() -> None:
    original = clip_grad.clip_grad_norm_

    @functools.wraps(original)
    def overheard(*args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        for listener in _listeners:
            listener(norm)
        return norm

    for module in (clip_grad, torch.nn.utils):
        setattr(module, _NAME, overheard)


def _unwrap() -> None:
    original = clip_grad.clip_grad_norm_.__wrapped__  # type: ignore[attr-defined]  # set by functools.wraps
    for module in (clip_grad, torch.nn.utils):
        setattr(module, _NAME, original)
