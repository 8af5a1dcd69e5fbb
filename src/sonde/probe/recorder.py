"""The recorder: takes saved values and their gradients, assigns keys, and passes them to their step.

It saves the value at the time of the call: statistics and hashes are computed (on a device: started) before `save`
returns. No hook outlives its step by more than one step: hooks whose gradient arrived are removed at `step()`, the
others one step later.

A value that is saved again because activation checkpointing repeats a forward pass does not count as a new call. It is
recorded under its own key, `{name}.{count}.debug.recompute`, and its gradient belongs to the first call.

A name that the user gave becomes a safe key of debug.json and a safe file name:

    key   {name}{_grad}.{count}.debug[.pass{k}]                 any name; JSON needs no escaping beyond its own
    file  {name}{_grad}.{count}[.pass{k}].debug[.{index}]*.{pt|npy}

A file name keeps letters, digits and `_-.`. Every other character, a leading dot and a dot inside an index is written
as %XX, so no name can escape its folder and no two names share a file. A name too long for the file system is cut and
ends in a digest of the whole name.
"""

import hashlib
import os
import re
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

from sonde.probe import dump
from sonde.probe.settings import TENSOR, ProbeSettings
from sonde.probe.step_dump import Observer, Seat, StepDump
from sonde.probe.walk import Framework, Indexes, Later, Leaf, walk

_TORCH_TENSORS: Final = "sonde.probe.torch_tensors"
_MAX_HOOKS: Final = 4096
"""Above this number of hooks, those whose graph is gone are dropped."""
MAX_FILE_BYTES: Final = 200
"""Longest file name in bytes. File systems allow 255; the rest is left for temporary names."""

_MARK: Final = "debug"


def value_key(base: str, count: int) -> str:
    """Return the key of a saved value, or of its first gradient if `base` belongs to the gradient."""
    return f"{base}.{count}.debug"


def pass_key(key: str, num_earlier: int) -> str:
    """Return the key of a gradient from a later backward pass."""
    return f"{key}.pass{num_earlier}" if num_earlier else key


def recompute_key(base: str, count: int) -> str:
    """Return the key of a value that activation checkpointing saved again."""
    return f"{base}.{count}.debug.recompute"


def file_name_of(key: str, indexes: tuple[str, ...], suffix: str) -> str:
    """Return the file name of one tensor; `key` is its record's key and `indexes` its path inside the saved value."""
    base, _, rest = key.rpartition(".debug")
    stem = ".".join([safe_name(base) + rest, _MARK, *(_safe_index(index) for index in indexes)])
    if len(stem.encode()) > MAX_FILE_BYTES:
        digest = hashlib.sha256(stem.encode()).hexdigest()[:16]
        stem = stem.encode()[: MAX_FILE_BYTES - 17].decode(errors="ignore") + "~" + digest
    return f"{stem}.{suffix}"


def safe_name(name: str) -> str:
    """Return `name` in a form that is safe inside a file name. Different names stay different."""
    quoted = re.sub(r"[^\w.-]", _quote, name)
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    # The mark between name and indexes must occur only once, or two names could collide.
    return quoted.replace(f".{_MARK}", f"%2E{_MARK}")


def _safe_index(index: str) -> str:
    quoted = safe_name(index).replace(".", "%2E")
    return "%64ebug" if quoted == _MARK else quoted or "%"


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


class Bases:
    """The base names used within a step. `y_grad` may be a value of that name or the gradient of `y`, but not both."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, bool]] = {}
        self._bases: dict[tuple[str, bool], str] = {}

    def of(self, name: str, *, is_grad: bool = False) -> str:
        """Return the base for `name`, the same each time; `~` is appended if another owner already took the base."""
        owner = (name, is_grad)
        base = self._bases.get(owner)
        if base is None:
            base = f"{name}_grad" if is_grad else name
            while base in self._owners:
                base += "~"
            self._owners[base] = owner
            self._bases[owner] = base
        return base


class _Calls:
    """The calls of one step: how often each name was saved, and where in the forward pass."""

    def __init__(self) -> None:
        self.bases = Bases()
        self._num_calls: dict[str, int] = {}
        self._num_recomputed: dict[str, int] = {}
        self.places: dict[str, list[tuple[int, int]]] = {}
        """By name: where in the forward pass calls without gradients were made, and their numbers."""
        self._first_in_backward: set[str] = set()
        self._recomputing: dict[tuple[str, int], int] = {}

    def count(self, name: str) -> int:
        """Return the number of this call, counted from 0."""
        count = self._num_calls.get(name, 0)
        self._num_calls[name] = count + 1
        return count

    def is_recompute(self, name: str) -> bool:
        """Return whether a call during backward repeats a forward; False if the name was only ever saved there."""
        if name not in self._num_calls:
            self._first_in_backward.add(name)
        return name not in self._first_in_backward

    def recomputed(self, name: str, node: int | None) -> tuple[int, bool]:
        """Return the number of a recomputed call, and whether the original call's gradients are recorded here.

        A reentrant checkpoint runs its first forward without gradients and knows its place in the forward order: the
        n-th call with a name inside it is the n-th such call after that place. For non-reentrant checkpoints, calls are
        numbered as they come.
        """
        if node is not None:
            num_before = self._recomputing.get((name, node), 0)
            self._recomputing[name, node] = num_before + 1
            places = self.places.get(name, [])
            position = bisect_right(places, (node, sys.maxsize)) + num_before
            if position < len(places):
                return places[position][1], True
        count = self._num_recomputed.get(name, 0)
        self._num_recomputed[name] = count + 1
        return count, False


class _Gradients:
    """The gradients of one saved value, and the backward passes that have reached it."""

    __slots__ = ("_num_by_leaf", "_passes", "fired", "grad_key", "step", "value_key")

    def __init__(self, step: StepDump, value_key: str, grad_key: str) -> None:
        self.step = step
        self.value_key = value_key
        self.grad_key = grad_key
        self.fired = False
        self._passes: list[int] = []
        self._num_by_leaf: dict[Indexes, int] = {}

    def key(self, backward_id: int, indexes: Indexes) -> str:
        """Return the key for a gradient of this backward pass; without an id (-1), each leaf keeps its own count."""
        self.fired = True
        if backward_id < 0:
            num_earlier = self._num_by_leaf.get(indexes, 0)
            self._num_by_leaf[indexes] = num_earlier + 1
            return pass_key(self.grad_key, num_earlier)
        if backward_id not in self._passes:
            self._passes.append(backward_id)
        return pass_key(self.grad_key, self._passes.index(backward_id))


class Recorder:
    """Records what one process saves, step by step."""

    def __init__(self, settings: ProbeSettings) -> None:
        self.settings = settings
        self.step_number = 0
        self._hashing = settings.summary_mode
        self._writes_tensors = settings.task == TENSOR
        self._owner_pid = os.getpid()
        self.seat = Seat(settings.dump_path, self._owner_pid)
        self._lock = threading.RLock()
        self.observers: list[Observer] = []
        """Called with every record and its step as it is written."""
        self.save: Callable[[object, str, bool], None] = self.record
        """`record`, possibly wrapped so that TorchDynamo does not trace it."""
        self.is_guarded = False
        self._max_hooks = _MAX_HOOKS
        self._calls = _Calls()
        self._steps = [self._new_step()]
        """The current step, and before it the previous one, whose gradients may still arrive."""

    def guard(self) -> None:
        """Make TorchDynamo, once loaded, run `save` without tracing into it. Costs 2.5 µs per call."""
        self.save = sys.modules["torch._dynamo"].disable(self.record)
        self.is_guarded = True

    def flush(self) -> None:
        """Write everything recorded so far, including debug.json."""
        for step in self._steps:
            step.complete()

    def next_step(self, *, number: int | None = None) -> None:
        """End the step: write it, remove hooks, and begin the next step or the one with the given number."""
        with self._lock:
            *older, ending = self._steps
            self.step_number = self.step_number + 1 if number is None else number
            self._calls = _Calls()
            self._steps = [ending, self._new_step()]
            ending.remove_hooks(only_fired=True)
        ending.complete()
        ending.forget()
        for step in older:
            step.close()

    def close(self) -> None:
        """Write everything and remove every hook."""
        for step in self._steps:
            step.close()
        self.seat.release()

    def after_fork(self) -> None:
        """Start afresh in a forked child, with a new lock: everything begun before the fork belongs to the parent."""
        self._lock = threading.RLock()
        self.seat = Seat(self.settings.dump_path, self._owner_pid)
        self._calls = _Calls()
        self._steps = [self._new_step()]

    def _new_step(self) -> StepDump:
        is_fork = os.getpid() != self._owner_pid
        return StepDump(self.settings, self.step_number, self.seat, self.observers, is_fork=is_fork)

    def record(self, variable: object, name: str, save_backward: bool) -> None:
        """Record a value under a name, and its gradients when they arrive."""
        torch_tensors = sys.modules.get(_TORCH_TENSORS)
        in_backward = torch_tensors is not None and torch_tensors.backward_id() >= 0
        with self._lock:
            step, calls = self._steps[-1], self._calls
            base = calls.bases.of(name)
            record: dict[str, Any] = {"type": dump.VALUE}
            if in_backward and calls.is_recompute(name):
                assert torch_tensors is not None
                count, takes_gradients = calls.recomputed(name, torch_tensors.recomputing_node())
                record["key"] = recompute_key(base, count)
                record["recompute"] = True
                has_gradients = save_backward and takes_gradients
            else:
                count = calls.count(name)
                record["key"] = value_key(base, count)
                has_gradients = save_backward
                place = None if torch_tensors is None else torch_tensors.place_without_gradients()
                if place is not None:
                    calls.places.setdefault(name, []).append((place, count))
            gradients = None
            if has_gradients:
                grad_key = value_key(calls.bases.of(name, is_grad=True), count)
                gradients = _Gradients(step, value_key(base, count), grad_key)
                if "recompute" not in record:
                    record["grad"] = grad_key
        laters: list[Later] = []

        def visit(tensor: Any, indexes: Indexes, framework: Framework) -> Leaf:
            leaf = self._describe(tensor, (record["key"], indexes), framework, step, laters)
            if framework.NAME not in ("", "pytorch"):
                record["framework"] = framework.NAME
            if gradients is not None:
                self._add_hook(tensor, indexes, framework, gradients)
            return leaf

        record["tree"] = walk(variable, visit)
        step.add(record, laters)

    def _describe(
        self, tensor: Any, place: tuple[str, Indexes], framework: Framework, step: StepDump, laters: list[Later]
    ) -> Leaf:
        """Return the leaf of a tensor, and write its file if whole tensors are saved."""
        leaf = framework.describe(tensor, self._hashing, laters)
        if self._writes_tensors:
            file_name = file_name_of(*place, framework.SUFFIX)
            if step.write_tensor(framework, tensor, file_name):
                leaf["data_name"] = file_name
        return leaf

    def _add_hook(self, tensor: Any, indexes: Indexes, framework: Framework, gradients: _Gradients) -> None:
        """Record the gradients of this tensor."""

        def notify(gradient: Any) -> None:
            try:
                self._add_gradient(gradient, indexes, framework, gradients)
            except Exception as error:  # noqa: BLE001  no error here may stop a backward pass
                gradients.step.add({"type": "ERROR", "key": gradients.grad_key, "error": repr(error)[:500]})

        handle = framework.on_gradient(tensor, notify)
        if handle is not None:
            with self._lock:
                hooks = gradients.step.hooks
                hooks.append((handle, gradients))
                if len(hooks) > self._max_hooks:  # a step that never ends: most of its graphs are gone
                    hooks[:] = [hook for hook in hooks if not _is_gone(hook[0])]
                    self._max_hooks = max(_MAX_HOOKS, 2 * len(hooks))

    def _add_gradient(self, gradient: Any, indexes: Indexes, framework: Framework, gradients: _Gradients) -> None:
        with self._lock:
            key = gradients.key(framework.backward_id(), indexes)
        step = gradients.step
        laters: list[Later] = []
        leaf = self._describe(gradient, (key, indexes), framework, step, laters)
        place = {"of": gradients.value_key, "indexes": list(indexes)}
        record = {"type": dump.GRAD, "key": key, **place, "leaf": leaf}
        step.add(record, laters)


def _is_gone(handle: Any) -> bool:
    """Return whether the tensor that a hook was on is gone. Only torch's handles can tell."""
    reference = getattr(handle, "hooks_dict_ref", None)
    return reference is not None and reference() is None
