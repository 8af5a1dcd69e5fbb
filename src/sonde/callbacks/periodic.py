"""The base class of callbacks that log every few updates, and what they need to pick values.

A value is selected by its name or by a handle, which is anything with a `name`. User functions get
tensors, whatever the task returned: `values[0].item()` works for a float too.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.errors import SettingError, check_at_least, did_you_mean


class PeriodicCallback(Callback, ABC):
    """Calls `log` after the first update and after every `step_freq`, on rank 0."""

    asks: ClassVar[bool] = False
    only_rank_0: ClassVar[bool] = True

    def __init__(self, step_freq: int = 25, tb_writer: Any = None, *, tensors: object = ()) -> None:
        """`tensors` are the names of the values that it logs."""
        check_at_least(1, step_freq=step_freq)
        self.names = names_of(tensors)
        """The names of the values that it logs."""
        self._step_freq = step_freq
        self.writer = tb_writer
        """The TensorBoard writer, or None."""
        self.epoch_started = time.monotonic()
        """When the epoch began, by the monotonic clock."""

    @abstractmethod
    def log(self, context: Context) -> None:
        """Log the update just made."""

    def on_run_start(self, context: Context) -> None:
        """Have the writer closed at the end of the run."""
        context.close_at_end(self.writer)

    def on_epoch_start(self, context: Context) -> None:
        """Start the clock of the epoch."""
        self.epoch_started = time.monotonic()

    def on_step_end(self, context: Context) -> None:
        """Log the update if it is due."""
        if self.is_due(context.step):
            self.log(context)

    def is_due(self, step: int) -> bool:
        """Return whether this update is to be logged."""
        return step == 1 or step % self._step_freq == 0

    def values(self, context: Context) -> list[Tensor]:
        """Return the named values of the step as detached tensors."""
        picked = []
        values = context.tensors
        for name in self.names:
            if name not in values:
                raise SettingError(
                    f"the task gives no value called {name!r}",
                    cause=f"it gives {', '.join(sorted(values))}",
                    hint=did_you_mean(name, values, "add it to the tensors of StepOutput"),
                )
            picked.append(torch.as_tensor(values[name]).detach())
        return picked

    def write(self, context: Context, numbers: Mapping[str, Any]) -> None:
        """Write numbers by their tags to TensorBoard, if there is a writer."""
        if self.writer is not None:
            for tag, number in numbers.items():
                self.writer.add_scalar(tag, as_number(number), context.step)


def names_of(tensors: object) -> tuple[str, ...]:
    """Return the names in a list of names and handles. A single one is treated as a list of one."""
    if isinstance(tensors, str) or not isinstance(tensors, Iterable):
        tensors = [tensors]
    names = [
        tensor if isinstance(tensor, str) else getattr(tensor, "name", None) for tensor in tensors
    ]
    if not all(isinstance(name, str) for name in names):
        raise SettingError(
            f"a tensor is asked for by its name, or by something that has one, not by {tensors!r}"
        )
    return tuple(map(str, names))


def as_number(value: Any) -> float:
    """Convert a number, tensor or array scalar to a float."""
    return float(value.item() if hasattr(value, "item") else value)


def numbers_in(values: object) -> dict[str, float]:
    """Return the results that are single numbers, by name. Lists, strings and other values are left
    out.
    """
    numbers: dict[str, float] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(value, (str, bytes)):
            with suppress(TypeError, ValueError, RuntimeError):
                numbers[str(name)] = as_number(value)
    return numbers
