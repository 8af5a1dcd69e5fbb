"""Forward passes that leave no trace: what a look at the scene touches is put back, by name and by
value.

`standing_still` remembers the gradients, the generators, and everything that the modules of the
model hold besides their parameters: buffers under their names, other tensors, counters, modes,
hooks, generators of their own. The same goes for what the step function reaches: its closure, the
globals it names, the object it belongs to, and the count of an accelerator. Afterwards each is what
it was, and tensors have their old values in their old memory, so that views of them agree too.

Some things cannot be put back: an iterator that the step function draws its data from, a file, a
counter in a library. `takes_from_iterators` finds the first, and then nothing is run again. The
others are noticed if the repeated step does not give the same loss to the bit (scene.py).
"""

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from sonde.recorder.accumulation import counts_batches, undo_counting
from sonde.train.determinism import generators_restored

_MAX_DEPTH: Final = 3
"""How deep to follow functions that call functions, and containers in containers."""
_MAX_ENTRIES: Final = 10_000
"""Larger lists and dicts of a user's own are not copied."""
_BOUND_ANEW: Final = (int, float, bool, str, complex, type(None), tuple, Tensor)
"""A step may bind a name to another value of these, such as the hidden state of an RNN."""
_GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

Undo = Callable[[], object]


@contextmanager
def standing_still(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step_function: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Allow forward passes within the block and restore the state of the training afterwards."""
    remembered = Remembered()
    for module in model.modules():
        remembered.remember_attributes(module)
    if step_function is not None:
        remembered.remember_function(step_function)
    gradients = _take_gradients(model, optimizer)
    try:
        with generators_restored(), torch.enable_grad():
            yield
    finally:
        # The gradients first: whatever else fails, the next update must not lose them.
        for parameter, gradient in gradients:
            parameter.grad = gradient
        remembered.put_back()
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # otherwise the next step would use weights from before the update


def _take_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> list[tuple[Tensor, Tensor | None]]:
    """Set the gradients aside, so that nothing is added to them."""
    parameters = dict.fromkeys(model.parameters())
    for group in optimizer.param_groups:
        parameters |= dict.fromkeys(group["params"])
    gradients: list[tuple[Tensor, Tensor | None]] = [
        (parameter, parameter.grad) for parameter in parameters
    ]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def takes_from_iterators(step_function: Callable[..., Any]) -> bool:
    """Return whether a step function reaches an iterator: run again, it would use up data."""
    return any(isinstance(value, Iterator) for value in reached(step_function))


def reached(step_function: Callable[..., Any]) -> Iterator[Any]:
    """Yield what a step function can reach by name."""
    yield from _reached(step_function, 0, set())


def _reached(function: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yield what a function can reach by name: its closure, its globals, its object's attributes,
    and the same of functions among them.
    """
    if id(function) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(function))
    function, owner = _function_and_owner(function)
    if owner is not None:
        yield from vars(owner).values()
    for _, value in _cells(function):
        yield value
        yield from _reached(value, depth + 1, seen)
    for name in _global_names(function):
        value = function.__globals__[name]
        yield value
        yield from _reached(value, depth + 1, seen)


def _function_and_owner(function: Any) -> tuple[Any, object | None]:
    """Return the plain function behind a callable, and the object that it belongs to, if any."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        owner = function.__self__
        return function.__func__, owner if _has_dict(owner) else None
    if isinstance(function, types.FunctionType):
        return function, None
    call = getattr(type(function), "__call__", None) if callable(function) else None  # noqa: B004
    if isinstance(call, types.FunctionType) and _has_dict(function):
        return call, function  # an object that is called like a function
    return None, None


def _cells(function: Any) -> list[tuple[types.CellType, Any]]:
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append((cell, cell.cell_contents))
        except ValueError:  # a name that has no value yet
            continue
    return found


def _global_names(function: Any) -> list[str]:
    """Return the globals that the code of a function names."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    names: list[str] = []
    pending = [code]
    while pending:
        inner = pending.pop()
        names += [name for name in inner.co_names if name in function.__globals__]
        pending += [part for part in inner.co_consts if isinstance(part, types.CodeType)]
    return names


def _has_dict(value: Any) -> bool:
    return isinstance(getattr(value, "__dict__", None), dict)


class Remembered:
    """Remembers values, and puts them back in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[Undo] = []
        self._seen: set[int] = set()
        self._storages: set[int] = set()

    def put_back(self) -> None:
        """Put everything back. One thing that refuses does not keep the others from it."""
        failures = []
        with torch.no_grad():
            while self._undo:
                try:
                    self._undo.pop()()
                except Exception as error:  # noqa: BLE001  the rest must be put back first
                    failures.append(error)
        if failures:
            raise failures[0]

    def remember_attributes(self, owner: object) -> None:
        """Remember the attributes of an object: which there are, and the values of those that can
        change in place.
        """
        if _has_dict(owner):
            self._remember_dict(vars(owner), 0)

    def remember_function(self, function: Any, depth: int = 0) -> None:
        """Remember what a function can change: its closure, the globals it names, its object."""
        if id(function) in self._seen or depth > _MAX_DEPTH:
            return
        self._seen.add(id(function))
        function, owner = _function_and_owner(function)
        if owner is not None:
            self.remember_attributes(owner)
        for cell, value in _cells(function):
            if isinstance(value, _BOUND_ANEW):
                self._undo.append(lambda cell=cell, value=value: _set_cell(cell, value))  # type: ignore[misc]
            self._remember_value(value, depth)
        for name in _global_names(function):
            value = function.__globals__[name]
            if isinstance(value, _BOUND_ANEW):
                space = function.__globals__
                self._undo.append(
                    lambda space=space, name=name, value=value: space.__setitem__(name, value)  # type: ignore[misc]
                )
            self._remember_value(value, depth)

    def _remember_value(self, value: Any, depth: int) -> None:
        if isinstance(value, nn.Parameter):
            return  # nothing but the optimizer changes those
        if isinstance(value, Tensor):
            self._remember_tensor(value)
        elif isinstance(value, _GENERATORS):
            self._remember_generator(value)
        elif isinstance(value, types.FunctionType | types.MethodType):
            self.remember_function(value, depth + 1)
        elif counts_batches(value):
            self._undo.append(undo_counting(value))
        elif depth >= _MAX_DEPTH or id(value) in self._seen:
            return
        elif isinstance(value, dict):
            self._remember_dict(value, depth + 1)
        elif isinstance(value, list | deque):
            self._remember_list(value, depth + 1)
        elif isinstance(value, set) and len(value) <= _MAX_ENTRIES:
            before = set(value)
            self._undo.append(lambda: _set_set(value, before))

    def _remember_dict(self, values: dict[Any, Any], depth: int) -> None:
        if id(values) in self._seen or len(values) > _MAX_ENTRIES:
            return
        self._seen.add(id(values))
        before = dict(values)
        self._undo.append(lambda: _set_dict(values, before))
        for value in before.values():
            self._remember_value(value, depth)

    def _remember_list(self, values: "list[Any] | deque[Any]", depth: int) -> None:
        if len(values) > _MAX_ENTRIES:
            return
        self._seen.add(id(values))
        before = list(values)
        self._undo.append(lambda: _set_list(values, before))
        for value in before:
            self._remember_value(value, depth)

    def _remember_tensor(self, tensor: Tensor) -> None:
        """Remember the memory of a tensor, so that expanded and overlapping ones are right too."""
        if tensor.is_meta or isinstance(tensor, nn.parameter.UninitializedBuffer):
            return
        if tensor.layout is not torch.strided or tensor.is_nested:
            return  # operations make new ones of these, and the old one is put back by its name
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._storages:
            return
        self._storages.add(storage.data_ptr())
        before = storage.clone()
        self._undo.append(lambda: storage.copy_(before))

    def _remember_generator(self, generator: Any) -> None:
        if isinstance(generator, torch.Generator):
            state: Any = generator.get_state()
            self._undo.append(lambda: generator.set_state(state))
        elif isinstance(generator, np.random.Generator):
            state = generator.bit_generator.state
            self._undo.append(lambda: setattr(generator.bit_generator, "state", state))
        elif isinstance(generator, np.random.RandomState):
            state = generator.get_state()
            self._undo.append(lambda: generator.set_state(state))
        else:
            state = generator.getstate()
            self._undo.append(lambda: generator.setstate(state))


def _set_cell(cell: types.CellType, value: Any) -> None:
    cell.cell_contents = value


def _set_dict(values: dict[Any, Any], before: Mapping[Any, Any]) -> None:
    """Give a dict its old entries, without touching one that has them."""
    if values.keys() == before.keys() and all(values[key] is before[key] for key in before):
        return
    values.clear()
    values.update(before)


def _set_list(values: "list[Any] | deque[Any]", before: list[Any]) -> None:
    if len(values) != len(before) or any(a is not b for a, b in zip(values, before, strict=True)):
        values.clear()
        values.extend(before)


def _set_set(values: set[Any], before: set[Any]) -> None:
    if values != before:
        values.clear()
        values.update(before)
