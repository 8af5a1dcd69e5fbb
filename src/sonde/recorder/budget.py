"""What the option `max_bytes` allows, known before anything is written: the size of a state, how
many of them, and what to say about it.

`max_bytes` is all that the budget knows. Whether the disk has that much room is not asked here: the
checkpoint store asks it at the first save (checkpoint/store.py).

The size is that of all tensors of the state, over all ranks. Moments that the optimizer has not
made yet are counted as torch's optimizers make them: two of each weight if it has betas, one if it
has momentum. Nothing is copied and nothing is exchanged between ranks.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from sonde.recorder.options import RecorderOptions


class StatePlan(NamedTuple):
    """What is kept of states."""

    state_bytes: int
    """The size of one state."""
    num_states: int
    """How many are kept; 0 if a single one exceeds the budget."""


def plan_states(state_bytes: int, options: RecorderOptions) -> StatePlan:
    """Return what the budget allows. The next state is written before the oldest is removed, so
    there is room for one more if that is possible.
    """
    if state_bytes > options.max_bytes:
        return StatePlan(state_bytes, 0)
    fitting = options.max_bytes // max(state_bytes, 1)
    return StatePlan(state_bytes, max(1, min(options.keep_states, fitting - 1)))


def steps_that_fit(state_bytes: int, num_states: int, batch_bytes: float, max_bytes: int) -> float:
    """Return how many steps may lie between two of `num_states` states, so that the batches since
    the oldest fit beside them and the next one; infinite if batches take nothing.
    """
    if not batch_bytes:
        return math.inf
    room = max(max_bytes - (num_states + 1) * state_bytes, 0)
    return room / (batch_bytes * num_states)


def bytes_held(state: Any) -> int:
    """Return the bytes of a state as it is now."""
    return _bytes_in(state, set())


def size_of_state(state: Any, optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of a state as it will be once the optimizer has moved."""
    return bytes_held(state) + _bytes_to_come(optimizer)


def size_in_words(num_bytes: float) -> str:
    """Return a size as people read it."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes / 1e3:.3g} kB"


def _bytes_in(value: Any, seen: set[int]) -> int:
    """Return the bytes of all tensors in a nested value, each memory once."""
    if isinstance(value, Tensor):
        own = value.to_local() if isinstance(value, DTensor) else value
        has_memory = own.layout is torch.strided and not own.is_meta
        place = own.data_ptr() if has_memory else 0
        if place and place in seen:
            return 0
        seen.add(place)
        return value.numel() * value.element_size()  # of a DTensor, the whole of it
    if isinstance(value, Mapping):
        return sum(_bytes_in(inner, seen) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_bytes_in(inner, seen) for inner in value)
    return 0


def _bytes_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the moments that an optimizer has not made yet."""
    total = 0
    for group in optimizer.param_groups:
        num_moments = _num_moments(group)
        for parameter in group["params"]:
            if parameter.requires_grad and not optimizer.state.get(parameter):
                total += num_moments * parameter.numel() * parameter.element_size()
    return total


def _num_moments(group: Mapping[str, Any]) -> int:
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    return 1 if group.get("momentum") else 0
