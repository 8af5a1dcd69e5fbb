"""`PrecisionDebugger`: save a variable and its gradient anywhere in the code, on every rank.

    debugger = PrecisionDebugger(dump_path="dump")        # or PrecisionDebugger("./config.json")
    …
    PrecisionDebugger.save(hidden, "hidden")               # anywhere in the code, any nested value
    …
    debugger.step()                                        # after each training step

There is one debugger per process. A call excluded by the step filter costs 0.1 µs, by the rank
filter 0.5 µs. A recorded call costs about 40 µs plus the passes over the tensor (numpy_arrays.py),
and 3 µs of the next `step` (benchmarks/probe.py). `save` never raises because of a value, never
changes a value and never waits for a device.

It saves the value at the time of the call: statistics and hashes are computed (on a device:
started) before `save` returns. No hook outlives its step by more than one step: hooks whose
gradient arrived are removed at `step()`, the others one step later.

A value that is saved again because activation checkpointing repeats a forward pass does not count
as a new call. It is recorded under its own key, `{name}.{count}.debug.recompute`, and its gradient
belongs to the first call.
"""

import atexit
import functools
import itertools
import logging
import os
import sys
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from sonde.errors import SettingError, check_at_least
from sonde.probe import dump
from sonde.probe.config_file import make_settings
from sonde.probe.settings import TENSOR, ProbeSettings
from sonde.probe.step_dump import Observer, Seat, StepDump, joined
from sonde.probe.walk import Framework, Indexes, Later, Leaf, walk
from sonde.records import disk

_TORCH_TENSORS: Final = "sonde.probe.torch_tensors"
_MAX_HOOKS: Final = 4096
"""Above this number of hooks, those whose graph is gone are dropped."""

_logger = logging.getLogger("sonde")


class Calls:
    """The calls of one step: how often each name was saved, and where in the forward pass."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, str]] = {}
        self._num_calls: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        self._num_recomputed: defaultdict[tuple[str, int | None], Iterator[int]] = defaultdict(
            itertools.count
        )
        self._places: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """By name: where in the forward pass calls without gradients were made, and their
        numbers.
        """
        self._first_in_backward: set[str] = set()

    def base(self, name: str, suffix: str = "") -> str:
        """Return the name in a key, the same each time. `y_grad` may be a value of that name or the
        gradient of `y`: whichever comes second gets a `~`.
        """
        base = name + suffix
        while self._owners.setdefault(base, (name, suffix)) != (name, suffix):
            base += "~"
        return base

    def count(self, name: str, place: int | None) -> int:
        """Return the number of this call, counted from 0. `place` is where it was made, if without
        gradients.
        """
        count = next(self._num_calls[name])
        if place is not None:
            self._places[name].append((place, count))
        return count

    def is_recompute(self, name: str) -> bool:
        """Return whether a call during backward repeats a forward; False if the name was only ever
        saved there.
        """
        if name not in self._num_calls:
            self._first_in_backward.add(name)
        return name not in self._first_in_backward

    def recomputed(self, name: str, node: int | None) -> tuple[int, bool]:
        """Return the number of a recomputed call, and whether the original call's gradients are
        recorded here.

        A reentrant checkpoint runs its first forward without gradients and knows its place in the
        forward order: the n-th call with a name inside it is the n-th such call after that place.
        For non-reentrant checkpoints, calls are numbered as they come.
        """
        if node is not None:
            places = self._places[name]
            position = bisect_right(places, (node, sys.maxsize)) + next(
                self._num_recomputed[name, node]
            )
            if position < len(places):
                return places[position][1], True
        return next(self._num_recomputed[name, None]), False


@dataclass(slots=True, eq=False)
class _Gradients:
    """The gradients of one saved value, and the backward passes that have reached it."""

    step: StepDump
    value_key: str
    grad_key: str
    fired: bool = False
    passes: dict[int, int] = field(default_factory=dict)
    """The number of each pass by its id."""
    last_by_leaf: dict[Indexes, int] = field(default_factory=dict)
    """The number of each leaf's latest pass, where passes have no id."""

    def key(self, backward_id: int, indexes: Indexes) -> str:
        """Return the key for a gradient of this backward pass; without an id (-1), each leaf keeps
        its own count.
        """
        self.fired = True
        if backward_id >= 0:
            return dump.pass_key(
                self.grad_key, self.passes.setdefault(backward_id, len(self.passes))
            )
        self.last_by_leaf[indexes] = self.last_by_leaf.get(indexes, -1) + 1
        return dump.pass_key(self.grad_key, self.last_by_leaf[indexes])


class PrecisionDebugger:
    """Saves single values of a training run. Constructing it again with equal settings returns the
    same object.

    ```python
    import torch
    from sonde import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path="dump", step=[0, "2-3"])
    for step in range(5):
        PrecisionDebugger.save(torch.randn(4, 4), "activation")
        debugger.step()
    debugger.close()
    ```
    """

    _instance: ClassVar["PrecisionDebugger | None"] = None
    _active: ClassVar["PrecisionDebugger | None"] = None
    """The debugger while this rank and step are recorded; None makes `save` return immediately."""
    _is_undecided: ClassVar[bool] = False
    """True if there is a rank filter and torch.distributed could still assign another rank."""

    settings: ProbeSettings
    """The settings of this debugger."""
    step_number: int
    """The number of the current step."""
    observers: list[Observer]
    """Called with every record and its step as it is written."""
    _owner_pid: int
    _max_hooks: int
    _is_guarded = False
    """Whether `_record` is wrapped so that TorchDynamo does not trace it."""

    def __new__(
        cls,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        step: Any = None,
        *,
        rank: Any = None,
        summary_mode: str | None = None,
        model: object = None,
    ) -> "PrecisionDebugger":
        """Start saving. Arguments override the file.

        Args:
            config_path: A config file, sonde's or msprobe's.
            task: `"statistics"` (default), or `"tensor"` to save whole tensors as well.
            dump_path: The directory to write into.
            level: Only `"debug"`, msprobe's level for saving single values.
            step: The steps to save, from 0: a list of numbers and ranges such as `"3-5"`.
            rank: The ranks that save, in the same form.
            summary_mode: `"statistics"` (default); `"md5"` adds a CRC-32, `"xxh3"` a 128-bit hash.
            model: For scripts written for msprobe; it is not used.
        """
        del model
        arguments = {
            "task": task,
            "dump_path": dump_path,
            "level": level,
            "summary_mode": summary_mode,
        }
        settings = make_settings(config_path, arguments | {"step": step, "rank": rank})
        if cls._instance is not None:
            if cls._instance.settings != settings:
                raise SettingError(
                    "there is a PrecisionDebugger with other settings in this process",
                    cause=f"it has {cls._instance.settings}, asked for was {settings}",
                    hint=(
                        "close() it first, or construct it with the same settings to get the same"
                        " object"
                    ),
                )
            return cls._instance
        try:
            disk.make_directories(settings.dump_path)
        except OSError as error:
            sentence = f"cannot create dump_path {str(settings.dump_path)!r}"
            raise SettingError(sentence, cause=error.strerror or str(error)) from error
        self = super().__new__(cls)
        self.settings = settings
        self.step_number = 0
        self.observers = []
        self._owner_pid = os.getpid()
        self._max_hooks = _MAX_HOOKS
        self._begin()
        cls._instance = self
        self._choose()
        _watch_the_process()
        return self

    @classmethod
    def current(cls) -> "PrecisionDebugger":
        """Return the debugger of this process; raise SettingError if there is none."""
        if cls._instance is None:
            hint = 'construct one first: debugger = PrecisionDebugger(dump_path="dump")'
            raise SettingError("there is no PrecisionDebugger in this process", hint=hint)
        return cls._instance

    @classmethod
    def save(cls, variable: object, name: str, save_backward: bool = True) -> None:
        """Record the current value of `variable` under `name`, and the gradients of its tensors as
        they arrive.
        """
        if cls._is_undecided and joined() is not None:
            cls.current()._choose()
        active = cls._active
        if active is None:
            if cls._instance is None:
                cls.current()
            return
        if not isinstance(name, str):
            raise SettingError(f"the name of a saved value is {name!r}: it must be a string")
        try:
            if not active._is_guarded and "torch._dynamo" in sys.modules:
                # Once loaded, TorchDynamo would trace into what `save` calls. Costs 2.5 µs per
                # call.
                # wrapped for this object alone
                active._record = sys.modules["torch._dynamo"].disable(active._record)  # type: ignore[method-assign]
                active._is_guarded = True
            active._record(variable, name, bool(save_backward))
        except Exception as error:  # noqa: BLE001  a probe that fails must not stop training
            # This try block has a second purpose: when the graph breaks inside it, TorchDynamo
            # gives up on the frame and leaves it alone.
            _logger.warning(
                "the probe could not save %r: %s: %s", name, type(error).__name__, error
            )

    # TorchDynamo reads this mark, so we need not import it: a compiled function breaks its graph
    # here and does not trace into `save`.
    save.__func__._torchdynamo_disable = True  # type: ignore[attr-defined]

    @classmethod
    def start(cls, model: object = None, **_: object) -> None:
        """Do nothing, as in msprobe at level debug: `save` works from construction until
        `close`.
        """
        del model
        cls.current()

    @classmethod
    def stop(cls) -> None:
        """Write everything saved so far. Saving continues."""
        for step in cls.current()._steps:
            step.complete()

    forward_backward_dump_end = stop
    """The same as `stop`, for scripts written for older versions of msprobe."""

    @classmethod
    def step(cls) -> None:
        """End the training step: write its records and debug.json, and restart the counts from
        0.
        """
        cls.set_init_step(cls.current().step_number + 1)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """End the step, and set the number of the next one: the next values are saved in
        step{step}.
        """
        check_at_least(0, step=step)
        self = cls.current()
        with self._lock:
            *older, ending = self._steps
            self.step_number = step
            self._calls = Calls()
            self._steps = [ending, self._new_step()]
            ending.remove_hooks(only_fired=True)
        ending.complete()
        for older_dump in older:
            older_dump.close()
        self._choose()

    def close(self) -> None:
        """Write everything, remove all hooks, and allow another PrecisionDebugger to be
        constructed.
        """
        for step in self._steps:
            step.close()
        self._seat.release()
        if PrecisionDebugger._instance is self:
            PrecisionDebugger._instance = PrecisionDebugger._active = None
            PrecisionDebugger._is_undecided = False

    def _begin(self) -> None:
        """Start with nothing recorded: also in a forked child, where everything begun earlier
        belongs to the parent.
        """
        self._lock = threading.RLock()
        self._seat = Seat(self.settings.dump_path, self._owner_pid, self.settings.folder)
        self._calls = Calls()
        self._steps = [self._new_step()]
        """The current step, and before it the previous one, whose gradients may still arrive."""

    def _new_step(self) -> StepDump:
        return StepDump(self.settings, self.step_number, self._seat, self.observers)

    def _choose(self) -> None:
        """Decide whether to record this step on this rank; a rank filter is applied again once
        distributed is up.
        """
        steps = self.settings.step
        ranks = self.settings.rank
        is_chosen_step = not steps or self.step_number in steps
        is_chosen_rank = not ranks or self._seat.rank().number in ranks
        PrecisionDebugger._active = self if is_chosen_step and is_chosen_rank else None
        PrecisionDebugger._is_undecided = bool(ranks) and joined() is None

    def _record(self, variable: object, name: str, save_backward: bool) -> None:
        """Record a value under a name, and its gradients when they arrive."""
        torch_tensors = sys.modules.get(_TORCH_TENSORS)
        record: dict[str, Any] = {"type": dump.VALUE}
        with self._lock:
            step = self._steps[-1]
            calls = self._calls
            base = calls.base(name)
            if (
                torch_tensors is not None
                and torch_tensors.backward_id() >= 0
                and calls.is_recompute(name)
            ):
                count, takes_gradients = calls.recomputed(name, torch_tensors.recomputing_node())
                save_backward = save_backward and takes_gradients
                key = dump.value_key(base, count)
                record |= {"key": dump.recompute_key(key), "recompute": True}
            else:
                count = calls.count(
                    name, None if torch_tensors is None else torch_tensors.place_without_gradients()
                )
                record["key"] = key = dump.value_key(base, count)
            gradients = None
            if save_backward:
                gradients = _Gradients(step, key, dump.value_key(calls.base(name, "_grad"), count))
                if "recompute" not in record:
                    record["grad"] = gradients.grad_key
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
        self,
        tensor: Any,
        place: tuple[str, Indexes],
        framework: Framework,
        step: StepDump,
        laters: list[Later],
    ) -> Leaf:
        """Return the leaf of a tensor, and write its file if whole tensors are saved."""
        leaf = framework.describe(tensor, self.settings.summary_mode, laters)
        if self.settings.task == TENSOR:
            file_name = dump.file_name_of(*place, framework.SUFFIX, self.settings.file_mark)
            if step.write_tensor(framework, tensor, file_name):
                leaf["data_name"] = file_name
        return leaf

    def _add_hook(
        self, tensor: Any, indexes: Indexes, framework: Framework, gradients: _Gradients
    ) -> None:
        """Record the gradients of this tensor."""

        def notify(gradient: Any, backward_id: int) -> None:
            try:
                with self._lock:
                    key = gradients.key(backward_id, indexes)
                laters: list[Later] = []
                leaf = self._describe(gradient, (key, indexes), framework, gradients.step, laters)
                place = {"of": gradients.value_key, "indexes": list(indexes)}
                gradients.step.add({"type": dump.GRAD, "key": key, **place, "leaf": leaf}, laters)
            except Exception as error:  # noqa: BLE001  no error here may stop a backward pass
                gradients.step.add(
                    {"type": "ERROR", "key": gradients.grad_key, "error": repr(error)[:500]}
                )

        handle = framework.on_gradient(tensor, notify)
        if handle is not None:
            with self._lock:
                hooks = gradients.step.hooks
                hooks.append((handle, gradients))
                # a step that never ends: most of its graphs are gone
                if len(hooks) > self._max_hooks:
                    hooks[:] = [hook for hook in hooks if not _is_gone(hook[0])]
                    self._max_hooks = max(_MAX_HOOKS, 2 * len(hooks))


@functools.cache
def _watch_the_process() -> None:
    atexit.register(_close_at_exit)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _close_at_exit() -> None:
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


def _after_fork() -> None:
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance._begin()


def _is_gone(handle: Any) -> bool:
    """Return whether the tensor that a hook was on is gone. Only torch's handles can tell."""
    reference = getattr(handle, "hooks_dict_ref", None)
    return reference is not None and reference() is None
