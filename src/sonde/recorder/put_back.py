"""Forward passes that leave no trace: what a look at the scene touches is put back, by name and by
value.

`standing_still` remembers everything that the model and the step function reach (reach.py):
tensors, gradients, attributes, counters, modes, hooks, generators, globals. Afterwards each is what
it was, and tensors have their old values in their old memory, so that views of them agree too.
Weights are many, and seldom change here: each is copied only when an operation is about to write to
it, and so are other large tensors. The state of the optimizer is not touched.

No optimizer can move meanwhile (hooks.py). Some things cannot be put back: an iterator that the
step function draws its data from, a file, a counter in a library. reach.py finds the first two, and
then nothing is run again. The others are noticed if the repeated step does not give the same loss
to the bit (scene.py).
"""

import random
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.overrides import TorchFunctionMode

from sonde.recorder.accumulation import counts_batches, undo_counting
from sonde.recorder.memory import bytes_of
from sonde.recorder.reach import (
    MAX_ENTRIES,
    cells_of,
    global_names,
    is_left_alone,
    is_users_code,
    members_of,
    own_packages,
    reached,
    slots_of,
)
from sonde.train.determinism import generators_restored

_GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_MAX_COPIED: Final = 1 << 30
"""How many bytes of weights that the optimizer does not hold are copied for a compiled model, whose
operations are not seen.
"""

_LARGE: Final = 16 << 20
"""Tensors of so many bytes, such as averaged weights, are copied only when they are written to."""

_GIVES_MEMORY: Final = frozenset(
    ("numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage")
)
"""What others than torch may write to a tensor with."""
_SCRIPTS: Final = (torch.jit.ScriptFunction, torch.jit.ScriptModule)
_BACKWARD: Final = (Tensor.backward, torch.autograd.grad)
"""What runs hooks and functions of the user's without showing what these do."""

_copies_nothing: ContextVar[bool] = ContextVar("copies nothing", default=False)

Undo = Callable[[], object]


@contextmanager
def standing_still(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step_function: Callable[..., Any] | None = None,
    *,
    batches: Sequence[Any] = (),
    is_compiled: bool = False,
) -> Iterator[None]:
    """Allow forward passes within the block and restore the state of the training afterwards, and
    the `batches` that they use.
    """
    roots = [model, optimizer] if step_function is None else [model, optimizer, step_function]
    remembered = Remembered()
    weights = remembered.remember(*roots)
    tensors = remembered.remember_batches(batches)
    with ExitStack() as stack:
        if remembered.has_scripts:
            remembered.copy_weights([*weights, *remembered.large])
        elif is_compiled:
            remembered.copy_weights([*_not_in(optimizer, weights), *remembered.large])
        else:
            lazily = [*weights, *tensors, *remembered.large]
            stack.enter_context(CopyOnWrite(lazily, remembered))
        for weight in weights:
            weight.grad = None  # it is set aside, so that nothing is added to it
        try:
            with generators_restored(), torch.enable_grad():
                yield
        finally:
            stack.close()
            try:
                remembered.put_back()
            finally:
                for module in model.modules():
                    if isinstance(module, FSDPModule):
                        module.reshard()  # the next step would use weights from before the update


def _not_in(optimizer: torch.optim.Optimizer, weights: Iterable[Tensor]) -> list[Tensor]:
    """Return the weights that an optimizer does not hold, such as those of a teacher."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in weights if id(parameter) not in own]


@contextmanager
def without_copies() -> Iterator[None]:
    """Copy no weights within the block, which is sonde's own: it reads addresses, or repeats the
    backward pass of the step. A whole copy would take more memory than the step did.
    """
    token = _copies_nothing.set(True)
    try:
        yield
    finally:
        _copies_nothing.reset(token)


class CopyOnWrite(TorchFunctionMode):
    """Copies a weight when an operation in the block is about to write to it."""

    def __init__(self, weights: Iterable[Tensor], remembered: "Remembered") -> None:
        super().__init__()
        self._remembered = remembered
        self._weights = {address: weight for weight in weights if (address := _address(weight))}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Copy the weights among the arguments if the function writes, then call it."""
        kwargs = kwargs or {}
        if _copies_nothing.get():
            return func(*args, **kwargs)
        if func in _BACKWARD:
            self._copy(list(self._weights))
        elif _may_write(func, kwargs):
            self._copy(map(_address, _tensors_in((args, kwargs))))
        return func(*args, **kwargs)

    def _copy(self, addresses: Iterable[int]) -> None:
        """Copy the weights at some addresses, unless they are copied already."""
        found = [self._weights.pop(address, None) for address in addresses]
        self._remembered.copy_weights([weight for weight in found if weight is not None])


def _may_write(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function of torch may write to its arguments."""
    name = getattr(func, "__name__", "").partition(".")[0]  # an operation has an overload
    if name in _GIVES_MEMORY:
        return True
    if name.endswith("_") and not name.endswith("__"):
        return True
    if kwargs.get("inplace"):
        return True
    if name == "__setitem__" or name.startswith("__i") or "out" in kwargs:
        return True
    # With max_norm, these shorten the rows that they look up.
    return func in (F.embedding, F.embedding_bag)


def _tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    return [tensor for inner in value for tensor in _tensors_in(inner)]


def _address(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins; 0 if it has none."""
    if not _has_memory(tensor):
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # a tensor of a kind that has no storage
        return 0


def _is_weight(tensor: Tensor) -> bool:
    """Return whether a tensor is trained, or is a parameter that could be."""
    return isinstance(tensor, nn.Parameter) or (tensor.is_leaf and tensor.requires_grad)


def _has_memory(tensor: Tensor) -> bool:
    if tensor.is_meta or nn.parameter.is_lazy(tensor):
        return False
    # Operations make new ones of the others, and the old one is put back by its name.
    return tensor.layout is torch.strided and not tensor.is_nested


class Remembered:
    """Remembers values, and puts them back in the reverse order."""

    def __init__(self) -> None:
        self._undo: list[Undo] = []
        self._storages: set[int] = set()
        self._own_code: frozenset[str] = frozenset()
        self.large: list[Tensor] = []
        """Large tensors that are no weights, whose values are not copied yet."""
        self.has_scripts = False
        """Whether TorchScript is reached, whose operations are not seen."""

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

    def remember(self, *roots: Any) -> list[Tensor]:
        """Remember everything that some values reach. Returns the weights among it, whose values
        are not copied.
        """
        weights = []
        self._own_code = own_packages(roots)
        for value in reached(*roots):
            if isinstance(value, Tensor) and _is_weight(value):
                weights.append(value)
                self._remember_weight(value)
            elif isinstance(value, Tensor) and bytes_of(value) >= _LARGE and _address(value):
                self.large.append(value)
            else:
                self.has_scripts = self.has_scripts or isinstance(value, _SCRIPTS)
                self._remember(value)
        return weights

    def remember_batches(self, batches: Sequence[Any]) -> list[Tensor]:
        """Remember what batches hold, and the values of their arrays. Returns their tensors, whose
        values are not copied.
        """
        tensors = []
        for value in reached(*batches):
            if isinstance(value, Tensor):
                tensors.append(value)
            else:
                self._remember(value)
        return tensors

    def copy_weights(self, weights: Iterable[Tensor]) -> None:
        """Remember the values of weights, up to a size."""
        left = _MAX_COPIED
        for weight in weights:
            left -= bytes_of(weight)
            if left >= 0:
                self._remember_tensor(weight)

    def remember_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the state of an optimizer, which `remember` leaves out."""
        for value in reached(optimizer.state):
            if not isinstance(value, nn.Parameter):
                self._remember(value)

    def _remember(self, value: Any) -> None:
        """Remember how one value is, without those that it leads to."""
        ways: tuple[tuple[Any, Callable[[Any], None]], ...] = (
            (Tensor, self._remember_tensor),
            (_GENERATORS, self._remember_generator),
            (types.FunctionType, self._remember_function),
            (dict, self._remember_dict),
            ((list, deque, bytearray), self._remember_list),
            (set, self._remember_set),
            (np.ndarray, self._remember_array),
            (array, self._remember_numbers),
            (type, self._remember_class),
            (types.ModuleType, self._remember_module),
        )
        for kinds, remember in ways:
            if isinstance(value, kinds):
                remember(value)
                return
        if counts_batches(value):
            self._undo.append(undo_counting(value))
        elif not is_left_alone(value):
            self._remember_object(value)

    def _remember_module(self, module: types.ModuleType) -> None:
        if is_users_code(module, self._own_code):
            self._remember_dict(vars(module))

    def _remember_set(self, values: set[Any]) -> None:
        before = {*set.__iter__(values)}
        self._undo.append(lambda: _set_set(values, before))

    def _remember_numbers(self, values: "array[Any]") -> None:
        before = values[:]
        self._undo.append(lambda: values.__setitem__(slice(None), before))

    def _remember_object(self, owner: object) -> None:
        """Remember which attributes an object has."""
        own = getattr(owner, "__dict__", None)
        if isinstance(own, dict):
            self._remember_dict(own)
        for name in slots_of(owner):
            if hasattr(owner, name):
                value = getattr(owner, name)
                self._undo.append(lambda name=name, value=value: _set_slot(owner, name, value))  # type: ignore[misc]

    def _remember_class(self, kind: type) -> None:
        """Remember the values that a class of the user's holds."""
        if not is_users_code(kind, self._own_code):
            return
        for name, value in vars(kind).items():
            if not name.startswith("__") and not hasattr(value, "__get__"):
                self._undo.append(lambda name=name, value=value: _set_slot(kind, name, value))  # type: ignore[misc]

    def _remember_function(self, function: types.FunctionType) -> None:
        """Remember what the variables of a function's closure, and the globals it names, are bound
        to.
        """
        for cell, value in cells_of(function):
            self._undo.append(lambda cell=cell, value=value: _set_cell(cell, value))  # type: ignore[misc]
        if is_users_code(function, self._own_code):
            space = function.__globals__
            for name in global_names(function):
                if name in space:
                    value = space[name]
                    self._undo.append(
                        lambda name=name, value=value: _set_entry(space, name, value)  # type: ignore[misc]
                    )

    def _remember_dict(self, values: dict[Any, Any]) -> None:
        if dict.__len__(values) <= MAX_ENTRIES:
            before = _entries_of(values)
            self._undo.append(lambda: _set_dict(values, before))

    def _remember_list(self, values: "list[Any] | deque[Any] | bytearray") -> None:
        before = members_of(values, MAX_ENTRIES)
        if before is not None:
            self._undo.append(lambda: _set_list(values, before))

    def _remember_array(self, values: np.ndarray[Any, Any]) -> None:
        if values.nbytes <= _MAX_COPIED and values.flags.writeable:
            before = values.copy()
            self._undo.append(lambda: np.copyto(values, before))

    def _remember_weight(self, weight: Tensor) -> None:
        """Remember the gradient of a weight, what memory it uses, and whether it is trained."""
        gradient = weight.grad
        trains = weight.requires_grad
        address = _address(weight)
        data = weight.data if address else None
        self._undo.append(lambda: setattr(weight, "grad", gradient))

        def undo() -> None:
            if weight.requires_grad != trains:
                weight.requires_grad_(trains)
            if data is not None and (_address(weight) != address or weight.dtype != data.dtype):
                weight.data = data

        self._undo.append(undo)

    def _remember_tensor(self, tensor: Tensor) -> None:
        """Remember the memory of a tensor, so that expanded and overlapping ones are right too."""
        address = _address(tensor)
        if not address or address in self._storages:
            return
        self._storages.add(address)
        storage = tensor.untyped_storage()
        before = storage.clone()
        self._undo.append(lambda: storage.copy_(before))

    def _remember_generator(self, generator: Any) -> None:
        if isinstance(generator, random.SystemRandom):
            return  # it has no state
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


def _set_entry(values: dict[str, Any], name: str, value: Any) -> None:
    if values.get(name) is not value:
        values[name] = value


def _set_slot(owner: object, name: str, value: Any) -> None:
    if getattr(owner, name, None) is not value:
        setattr(owner, name, value)


def _entries_of(values: dict[Any, Any]) -> dict[Any, Any]:
    """Return the entries of a dict in their order, which an `OrderedDict` has apart."""
    kind: Any = OrderedDict if isinstance(values, OrderedDict) else dict
    return {key: dict.__getitem__(values, key) for key in kind.__iter__(values)}


def _set_dict(values: dict[Any, Any], before: Mapping[Any, Any]) -> None:
    """Give a dict its old entries in their old order, without touching those that it has. A class
    of the user's may refuse to be changed, so its own methods are not used.
    """
    kind: Any = OrderedDict if isinstance(values, OrderedDict) else dict
    now = [*kind.__iter__(values)]
    if any(a is not b for a, b in zip_longest(now[: len(before)], before)):
        kind.clear(values)
        now = []
    for key in now[len(before) :]:
        kind.__delitem__(values, key)
    for key, value in before.items():
        if not dict.__contains__(values, key) or dict.__getitem__(values, key) is not value:
            kind.__setitem__(values, key, value)


def _set_list(values: "list[Any] | deque[Any] | bytearray", before: list[Any]) -> None:
    kind: Any = next(kind for kind in (list, deque, bytearray) if isinstance(values, kind))
    now = [*kind.__iter__(values)]
    if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
        kind.clear(values)
        kind.extend(values, before)


def _set_set(values: set[Any], before: set[Any]) -> None:
    if {*set.__iter__(values)} != before:
        set.clear(values)
        set.update(values, before)
