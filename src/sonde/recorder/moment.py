"""Everything besides the model and the batch that a forward pass depends on: generators and
autocast.

Getting torch's generator state costs 1.2 µs. Those of Python and numpy cost 50 µs and more, so they
are recorded only if a step draws from them.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

Host: TypeAlias = tuple[
    tuple[int, tuple[int, ...], float | None], tuple[str, bytes, int, int, float]
]
"""The states of Python's and numpy's generators, as plain data."""
Autocast: TypeAlias = tuple[torch.dtype, bool]
"""The settings of `torch.autocast`: its precision, and whether it caches weights."""


class Moment(NamedTuple):
    """The generators and autocast when a micro-batch or a forward pass began."""

    cpu: Tensor
    """The state of torch's CPU generator."""
    device: Tensor | None
    """The state of the device's generator, if there is a device."""
    host: Host | None
    """The states of Python's and numpy's generators as plain data, if they were recorded."""
    autocast: Autocast | None
    """The autocast settings; None if off."""


def take_moment(device_type: str, *, with_host: bool = False) -> Moment:
    """Record the current moment."""
    autocast = None
    if torch.is_autocast_enabled(device_type):
        autocast = (torch.get_autocast_dtype(device_type), torch.is_autocast_cache_enabled())
    device = None
    if device_type != "cpu":
        device = torch.get_device_module(device_type).get_rng_state()
    host = host_generators() if with_host else None
    return Moment(torch.default_generator.get_state(), device, host, autocast)


def host_generators() -> Host:
    """Return the states of Python's and numpy's generators as plain data."""
    numpy: Any = np.random.get_state()  # noqa: NPY002  the global one, which users' code draws from
    return random.getstate(), (numpy[0], numpy[1].tobytes(), *numpy[2:])


@contextmanager
def back_at(moment: Moment, device_type: str) -> Iterator[None]:
    """Set generators and autocast to a recorded moment within the block. The generators are not
    restored afterwards.
    """
    set_generators(moment, device_type)
    dtype, caches = moment.autocast or (None, None)
    with torch.autocast(device_type, dtype=dtype, enabled=dtype is not None, cache_enabled=caches):
        yield


@contextmanager
def in_float32(model: nn.Module, device_type: str) -> Iterator[None]:
    """Switch autocast off in the forward passes of the model within the block, whatever the script
    has switched on.
    """
    forward = model.forward
    model.forward = torch.autocast(device_type, enabled=False)(forward)
    try:
        yield
    finally:
        model.forward = forward


def set_generators(moment: Moment, device_type: str) -> None:
    """Set the generators to their recorded states."""
    torch.default_generator.set_state(moment.cpu)
    if moment.device is not None and device_type != "cpu":
        torch.get_device_module(device_type).set_rng_state(moment.device)
    if moment.host is not None:
        python, (kind, key, position, has_gauss, cached) = moment.host
        random.setstate(python)
        numpy_state = (kind, np.frombuffer(key, np.uint32), position, has_gauss, cached)
        np.random.set_state(numpy_state)  # noqa: NPY002  the user's own generator, put back
