"""Find the operation that makes numbers break, by running a step again with every operation
watched.

    ForwardWatch      the first function of a module that gives numbers that are not finite from
                      finite ones
    BackwardWatch     the same for the functions of a graph and their gradients

Infinite numbers are seen as well as NaN. A mask of infinities is meant to be one: where infinite
numbers went in, only NaN counts. At an event only: every operation waits for its device.
"""

import math
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

_TRACE_LINE: Final = re.compile(r'File "([^"]+)", line (\d+), in \w+\n\s+(.+)')
_TRACE_KEY: Final = "traceback_"
"""Where a function of a graph has the stack of its forward pass, if it was made under
`torch.autograd.detect_anomaly`.
"""
_NOT_THE_USERS: Final = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parents[1]}{os.sep}",
)
"""Where the code of torch and of sonde is."""


class BrokenOperation(NamedTuple):
    """An operation, and the line of the user's script that it belongs to; empty if not known."""

    name: str = ""
    line: str = ""
    overflows_in: str = ""
    """The half precision whose largest number it passed: infinite there, finite in float32."""


class ForwardWatch(TorchFunctionMode):
    """Watches the functions that torch is asked for while a module runs."""

    def __init__(self) -> None:
        super().__init__()
        self._is_watching = False
        self._first = BrokenOperation()
        self._first_nan = BrokenOperation()

    @property
    def found(self) -> BrokenOperation:
        """The first function that gave numbers that are not finite from finite ones. Otherwise the
        first that gave NaN from numbers without NaN.
        """
        return self._first if self._first.name else self._first_nan

    @contextmanager
    def on(self, module: nn.Module | None) -> Iterator[None]:
        """Watch a module within the block, or everything."""
        self._is_watching = module is None
        handles: list[Any] = []
        if module is not None:
            handles.append(module.register_forward_pre_hook(lambda *_: self._watch(True)))
            handles.append(module.register_forward_hook(lambda *_: self._watch(False)))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function, and look at what it makes of finite numbers."""
        del types
        kwargs = kwargs or {}
        if not self._is_watching or self._first.name:
            return func(*args, **kwargs)
        given = [*_numbers(args), *_numbers(kwargs.values())]
        was_finite = all(map(_is_finite, given))
        had_nan = any(map(_has_nan, given))
        result = func(*args, **kwargs)
        made = _numbers([result])
        if was_finite and not all(map(_is_finite, made)):
            precision = _overflowing(func, args, kwargs, made)
            self._first = _called_now(func)._replace(overflows_in=precision)
        elif not had_nan and not self._first_nan.name and any(map(_has_nan, made)):
            self._first_nan = _called_now(func)
        return result

    def _watch(self, is_watching: bool) -> None:
        self._is_watching = is_watching


class BackwardWatch:
    """Watches the functions of the graph of a loss while gradients go through it."""

    def __init__(self, loss: Tensor) -> None:
        self.found = BrokenOperation()
        """The first function that gave a gradient that is not finite from finite ones."""
        self._handles = [
            node.register_hook(partial(self._passed, node)) for node in _nodes(loss.grad_fn)
        ]

    def close(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()

    def _passed(self, node: Node, given: tuple[Any, ...], received: tuple[Any, ...]) -> None:
        if self.found.name or not all(map(_is_finite, _numbers(received))):
            return
        if not all(map(_is_finite, _numbers(given))):
            metadata: Any = node.metadata  # torch declares it as a method
            trace = "".join(metadata.get(_TRACE_KEY, ()))
            self.found = BrokenOperation(node.name(), _line_of_user(_TRACE_LINE.findall(trace)))


def _nodes(root: Node | None) -> list[Node]:
    """Return the functions of a graph, each once."""
    found: dict[Node, None] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(found)


def _overflowing(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], made: list[Tensor]
) -> str:
    """Return the half precision in which a function gives infinite numbers, and not in float32;
    empty if it is something else.
    """
    halves = [tensor for tensor in made if tensor.dtype in (torch.float16, torch.bfloat16)]
    if not halves or any(map(_has_nan, made)):
        return ""
    with suppress(Exception), torch.no_grad():
        again = func(*map(_in_float32, args), **{key: _in_float32(kwargs[key]) for key in kwargs})
        if all(map(_is_finite, _numbers([again]))):
            return str(halves[0].dtype).removeprefix("torch.")
    return ""


def _in_float32(value: Any) -> Any:
    is_number = isinstance(value, Tensor) and value.is_floating_point()
    return value.float() if is_number else value


def _called_now(func: Callable[..., Any]) -> BrokenOperation:
    """Return a function that is called now, with the line of the user's script."""
    stack = [
        (frame.filename, frame.lineno, frame.line or "") for frame in traceback.extract_stack()
    ]
    name = getattr(func, "__name__", "").strip("_")
    return BrokenOperation(name or "an operation", _line_of_user(stack))


def _line_of_user(stack: Iterable[tuple[str, Any, str]]) -> str:
    """Return the innermost line of a stack that is neither torch's nor ours. The user's own folder
    may have either name.
    """
    own = [line for line in stack if not line[0].startswith(_NOT_THE_USERS)]
    if not own:
        return ""
    path, number, code = own[-1]
    return f"{path.rsplit('/', 1)[-1]}:{number} `{code.strip()}`"


def _numbers(values: Iterable[Any]) -> list[Any]:
    """Return the tensors of real numbers among some values, and the numbers."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += _numbers(value)
        elif isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
            found.append(value)
    return found


def _is_finite(value: Tensor | float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else bool(torch.isfinite(value).all())


def _has_nan(value: Tensor | float) -> bool:
    return math.isnan(value) if isinstance(value, float) else bool(torch.isnan(value).any())
