"""The generators and the autocast of one moment of a training, and how to go back there.

Torch's state costs 1.2 µs. Those of python and numpy cost 50 µs and more, so they are taken only where a step draws from them.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Autocast(NamedTuple):
    """What `torch.autocast` stood at."""

    enabled: bool
    dtype: torch.dtype
    cache: bool


class Moment(NamedTuple):
    """Everything outside of model and batch that a forward depends on."""

    cpu: Tensor
    """Torch's generator."""
    device: Tensor | None
    """That of the device, if there is one."""
    host: tuple[Any, Any] | None
    """Those of python and numpy, where they were taken."""
    autocast: Autocast | None
    """None: off."""


def take_moment(device_type: str, *, with_host: bool = False) -> Moment:
    """The moment that is now."""
    autocast = None
    if torch.is_autocast_enabled(device_type):
        autocast = Autocast(True, torch.get_autocast_dtype(device_type), torch.is_autocast_cache_enabled())
    return Moment(
        torch.default_generator.get_state(),
        None if device_type == "cpu" else torch.get_device_module(device_type).get_rng_state(),
        host_generators() if with_host else None,
        autocast,
    )


def host_generators() -> tuple[Any, Any]:
    """The states of python's and numpy's generators."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002  the global one, which users' code draws from


def same_generators(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Have neither of them moved?"""
    return bool(one[0] == other[0] and one[1][2:] == other[1][2:] and np.array_equal(one[1][1], other[1][1]))


@contextmanager
def back_at(moment: Moment, device_type: str) -> Iterator[None]:
    """Within the block, generators and autocast begin as they were; the block leaves the generators where it brought them."""
    set_generators(moment, device_type)
    autocast = moment.autocast
    with torch.autocast(
        device_type,
        dtype=autocast.dtype if autocast else None,
        enabled=autocast is not None,
        cache_enabled=autocast.cache if autocast else None,
    ):
        yield


def set_generators(moment: Moment, device_type: str) -> None:
    """Put the generators where they were."""
    torch.default_generator.set_state(moment.cpu)
    if moment.device is not None and device_type != "cpu":
        torch.get_device_module(device_type).set_rng_state(moment.device)
    if moment.host is not None:
        random.setstate(moment.host[0])
        np.random.set_state(moment.host[1])  # noqa: NPY002  the user's own generator, put back
