"""What a training reaches by name: all that a step that is run again could change.

From the model and the step function on, names are followed: closures, globals that the code names,
default arguments, attributes of objects and classes, containers. The code of libraries is not
followed, and of their objects only those that hold the state of a training: modules, optimizers,
schedulers, augmentations. Loggers, trackers and objects of sonde itself are left alone.

Things that live by themselves, such as iterators, files, queues and threads, cannot be put back.
`moves_by_itself` finds them: then a step is not run again.
"""

import argparse
import functools
import queue
import random
import socket
import sys
import threading
import types
import weakref
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler

from sonde.recorder.accumulation import counts_batches

MAX_ENTRIES: Final = 10_000
"""Larger lists and dicts of a user's own are not looked into."""
_MAX_VALUES: Final = 300_000
"""So many values are looked at, at most: a second of CPU."""
_GENERATORS: Final = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LEAVES: Final = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice),
    *(torch.dtype, torch.device, Tensor, np.ndarray, np.generic, *_GENERATORS),
    *(types.BuiltinFunctionType, types.CodeType),
)
"""What leads to nothing else."""
_MEMBERS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque, bytearray)
_ALIVE: Final = (
    *(Iterator, threading.Thread, type(threading.Lock()), type(threading.RLock())),
    *(threading.Condition, threading.Semaphore, queue.Queue, queue.SimpleQueue, socket.socket),
    *(Executor, Future, BaseProcess),
)
_ALIVE_PACKAGES: Final = ("asyncio", "ctypes", "multiprocessing", "sqlite3", "subprocess")
"""Packages whose objects others can change, or that cannot be copied."""
_PLAIN: Final = (
    *(types.SimpleNamespace, argparse.Namespace, UserDict, UserList),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)
"""Objects of Python's own library that hold values of the user's."""
_OF_TORCH: Final = (
    *(nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    *(torch.amp.GradScaler, torch.quasirandom.SobolEngine, Sampler),
)
"""Objects of torch that hold the state of a training."""
_LEFT_ALONE: Final = (
    *("sonde", "wandb", "mlflow", "tensorboard", "tensorboardX", "neptune", "comet_ml", "clearml"),
    *("aim", "trackio", "swanlab", "rich", "loguru"),
)
"""Packages whose objects watch a training and are no part of it."""


def reached(*roots: Any) -> Iterator[Any]:
    """Yield everything that can be reached from some values, each once."""
    for value, _ in _walk(roots):
        yield value


def moves_by_itself(*roots: Any) -> bool:
    """Return whether something is reached that cannot be put back, such as an iterator, which would
    lose data, or a queue that a thread fills. What is inside the objects of libraries is their own.
    """
    return any(_is_alive(value) for value, is_own in _walk(roots) if is_own)


def _walk(roots: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield what can be reached, and whether no object of a library is on the way to it."""
    own_code = own_packages(roots)
    seen: dict[int, Any] = {}  # the values too, so that no other one gets the same id
    pending: list[tuple[Any, bool]] = [(root, True) for root in roots]
    while pending and len(seen) < _MAX_VALUES:
        value, is_own = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        yield value, is_own
        if isinstance(value, Tensor) and getattr(value, "__dict__", None):
            pending.append((vars(value), False))  # what others have noted at a tensor
        if isinstance(value, _LEAVES):
            continue
        stays_own = is_own and not _is_foreign_object(value, own_code)
        pending += [(inner, stays_own) for inner in _led_to(value, own_code)]


def _led_to(value: Any, own_code: frozenset[str]) -> Iterable[Any]:
    """Return what a value leads to."""
    if isinstance(value, dict):
        return [*dict.values(value)] if dict.__len__(value) <= MAX_ENTRIES else ()
    if isinstance(value, _MEMBERS):
        return members_of(value, MAX_ENTRIES) or ()
    if isinstance(value, types.FunctionType):
        return _of_function(value, own_code)
    if isinstance(value, type | types.ModuleType):
        return [*vars(value).values()] if is_users_code(value, own_code) else ()
    return _of_wrapper(value) or _of_object(value)


def members_of(value: Any, at_most: int) -> list[Any] | None:
    """Return the members of a list, a tuple, a set or a deque; None if there are too many. No code
    of its class is run, because it may draw random numbers.
    """
    for kind in _MEMBERS:
        if isinstance(value, kind):
            return [*kind.__iter__(value)] if kind.__len__(value) <= at_most else None
    return None


def _of_wrapper(value: Any) -> tuple[Any, ...]:
    """Return what is inside something that stands for a function; empty if it does not."""
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    return (value.fget,) if isinstance(value, property) else ()


def _of_object(value: Any) -> Iterable[Any]:
    if isinstance(value, DataLoader):  # not its workers: a step that takes data begins anew
        return (value.generator, value.sampler, value.batch_sampler, value.dataset)
    if counts_batches(value) or is_left_alone(value) or is_progress(value):
        return ()
    if isinstance(value, torch.optim.Optimizer):  # only its own step changes its state
        return [inner for name, inner in vars(value).items() if name != "state"]
    return [*attributes_of(value).values(), type(value)]


def attributes_of(value: object) -> dict[str, Any]:
    """Return the attributes that an object has of its own, those in slots included."""
    found: dict[str, Any] = {}
    for name in slots_of(value):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and len(own) <= MAX_ENTRIES:
        found |= own
    return found


def slots_of(value: object) -> list[str]:
    """Return the names of the slots of an object of the user's."""
    names: list[str] = []
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            found = vars(kind).items()
            names += [name for name, slot in found if isinstance(slot, types.MemberDescriptorType)]
    return names


def cells_of(function: Any) -> list[tuple[types.CellType, Any]]:
    """Return the variables of outer functions that a function uses, with their values."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append((cell, cell.cell_contents))
        except ValueError:  # a name that has no value yet
            continue
    return found


def global_names(function: types.FunctionType) -> list[str]:
    """Return the names in the code of a function that may be globals."""
    names: list[str] = []
    pending = [function.__code__]
    while pending:
        inner = pending.pop()
        names += inner.co_names
        pending += [part for part in inner.co_consts if isinstance(part, types.CodeType)]
    return names


def _of_function(function: types.FunctionType, own_code: frozenset[str]) -> list[Any]:
    found = [value for _, value in cells_of(function)]
    found += [function.__defaults__, function.__kwdefaults__, vars(function)]
    if is_users_code(function, own_code):
        space = function.__globals__
        found += [space[name] for name in global_names(function) if name in space]
    return found


def own_packages(roots: Iterable[Any]) -> frozenset[str]:
    """Return the packages of the step function among some roots: they are the user's, even if they
    are installed.
    """
    functions = [root for root in roots if not isinstance(root, _OF_TORCH)]
    return frozenset(filter(None, map(_package_of, functions)))


def is_users_code(value: Any, own_code: frozenset[str]) -> bool:
    """Return whether a function, class or module was written for this training. `own_code` are the
    `own_packages`.
    """
    package = _package_of(value)
    return package in own_code or _is_users_package(package)


@functools.cache
def _is_users_package(package: str) -> bool:
    if package == "__main__":
        return True
    if not package or package in sys.stdlib_module_names or package in _LEFT_ALONE:
        return False
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "-packages" not in file


def _package_of(value: Any) -> str:
    """Return the outermost package that a value, or its class, was defined in."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.ModuleType):
        name: Any = value.__name__
    else:
        name = getattr(value, "__module__", None) or type(value).__module__
    package = name.partition(".")[0] if isinstance(name, str) else ""
    return "" if package in ("torch", "transformers", "lightning", "builtins") else package


def _is_foreign_object(value: Any, own_code: frozenset[str]) -> bool:
    """Return whether something is an object of a library, and no plain container."""
    kind = type(value)
    if kind.__module__ in ("builtins", "types", "functools", "collections"):
        return False
    if isinstance(value, _OF_TORCH) and kind.__module__.startswith("torch."):
        return False
    return not is_users_code(kind, own_code)


def _is_alive(value: Any) -> bool:
    if isinstance(value, type | types.ModuleType | types.FunctionType):
        return False
    package = type(value).__module__.partition(".")[0]
    return isinstance(value, _ALIVE) or package in _ALIVE_PACKAGES


def is_progress(value: Any) -> bool:
    """Return whether something is a progress bar: its count is put back, but nothing inside it."""
    return type(value).__module__.partition(".")[0] == "tqdm"


def is_left_alone(value: Any) -> bool:
    """Return whether the attributes of an object are none of a training's business."""
    if isinstance(value, _OF_TORCH):
        return False
    if _is_alive(value):
        return True
    package = type(value).__module__.partition(".")[0]
    if package in _LEFT_ALONE or package == "torch":
        return True
    if package in sys.stdlib_module_names:
        return not isinstance(value, _PLAIN)
    if is_progress(value):
        return False
    is_library = not _is_users_package(package)
    # Others use it at the same time.
    return is_library and any(map(_is_alive, attributes_of(value).values()))
