"""`watch`: record the inputs, outputs and gradients of modules, and name the first one that went
wrong.

    with probe.watch(model, modules=["*.attention", "head"], every=10) as watch:
        …
        debugger.step()
        watch.suspects                        # [SuspectModule(step=…, module="layers.3.mlp",
                                              # kind="non-finite", …)]

The PrecisionDebugger of this process saves the values under `{module}.input` and `{module}.output`,
so everything said about `save` applies here. Records are judged as they are written, in execution
order. The first output that is not finite, or is far from this module's outputs in earlier steps,
names the module that produced it; if the bad value was already in the input, the suspect says so.
There is at most one suspect per step; it is also written to the log and the stream.
"""

import fnmatch
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from sonde.errors import SettingError, did_you_mean
from sonde.probe.debugger import PrecisionDebugger
from sonde.probe.dump import GRAD, SUSPECT, VALUE
from sonde.probe.walk import Leaf, leaves
from sonde.spread import Spread

NON_FINITE: Final = "non-finite"
OUTLYING: Final = "outlying"

_ROOT: Final = "model"
"""The name of the model itself among its modules."""
_MIN_HISTORY: Final = 8
_MAX_HISTORY: Final = 64
_MAX_DEVIATION: Final = 8.0
"""Largest deviation in robust standard deviations of the logarithm of the root mean square."""
_MIN_FACTOR: Final = 2.0
"""A value must change by more than this factor to be outlying, even if it has hardly ever moved."""

_logger = logging.getLogger("sonde")


@dataclass(frozen=True, kw_only=True, slots=True)
class SuspectModule:
    """The first module in execution order with a bad value in a step."""

    step: int
    module: str
    where: str
    """`output` if the module produced the value, `input` if it received it, `gradient of …` in the
    backward pass.
    """
    kind: str
    """NON_FINITE or OUTLYING."""
    detail: str


def watch(model: Any, modules: Iterable[str] | None = None, every: int = 1) -> "OutlierWatch":
    """Save inputs and outputs of the model's modules (all, or those matching a pattern) on every
    n-th step.
    """
    return OutlierWatch(model, modules, every)


def level_of(leaf: Leaf) -> float | None:
    """Return log2 of the root mean square of a tensor's values, or None if that is undefined."""
    norm = leaf.get("Norm")
    num = math.prod(leaf.get("shape", ()))
    if not isinstance(norm, float) or not math.isfinite(norm) or norm <= 0 or num == 0:
        return None
    return math.log2(norm / math.sqrt(num))


def is_outlying(level: float, usual: Spread) -> bool:
    """Return whether a level is far from earlier ones. Uses median and quartiles, so one spike does
    not matter.
    """
    if len(usual) < _MIN_HISTORY:
        return False
    return abs(level - usual.median) > max(_MAX_DEVIATION * usual.deviation, math.log2(_MIN_FACTOR))


class OutlierWatch:
    """The hooks on a model. Use it in a `with` block, or call `close`."""

    def __init__(self, model: Any, modules: Iterable[str] | None, every: int) -> None:
        if every < 1:
            raise SettingError(f"every is {every}: it must be 1 or more")
        self._debugger = PrecisionDebugger.current()
        self._every = every
        self._modules = _choose(model, modules)
        self.suspects: list[SuspectModule] = []
        """One suspect per step with a bad value. Updated when records are written: after `step()`
        or `stop()`.
        """
        self._history: dict[tuple[str, ...], deque[float]] = {}
        self._handles = [
            handle for name, module in self._modules.items() for handle in self._hook(name, module)
        ]
        self._debugger.observers.append(self._observe)

    @property
    def first_suspect(self) -> SuspectModule | None:
        """The first suspect, or None."""
        return self.suspects[0] if self.suspects else None

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        if self._handles:
            self._debugger.observers.remove(self._observe)
        self._handles = []

    def __enter__(self) -> "OutlierWatch":
        return self

    def __exit__(self, *_: object) -> None:
        self._debugger.stop()
        self.close()

    def _hook(self, name: str, module: Any) -> Iterator[Any]:
        def before(_: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if self._is_due():
                PrecisionDebugger.save(
                    [*arguments, keywords] if keywords else list(arguments), f"{name}.input"
                )

        def after(_: Any, arguments: tuple[Any, ...], output: Any) -> None:
            del arguments
            if self._is_due():
                PrecisionDebugger.save(output, f"{name}.output")

        yield module.register_forward_pre_hook(before, with_kwargs=True)
        yield module.register_forward_hook(after)

    def _is_due(self) -> bool:
        return self._debugger.step_number % self._every == 0

    def _observe(self, record: dict[str, Any], step: int) -> list[dict[str, Any]]:
        """Judge a record and note the first bad value of each step. Called in execution order."""
        place = self._place(record)
        if place is None:
            return []
        module, where = place
        if record["type"] == GRAD:
            nodes = [(tuple(record["indexes"]), record["leaf"])]
        else:
            nodes = leaves(record["tree"])
        known = [
            ((module, where, *indexes), leaf)
            for indexes, leaf in nodes
            if leaf is not None and "shape" in leaf
        ]
        bad = [judged for key, leaf in known if (judged := self._judge(key, leaf)) is not None]
        if not bad or (self.suspects and step == self.suspects[-1].step):
            return []
        kind, detail = bad[0]
        _logger.warning("step %d: the %s of %s is %s (%s)", step, where, module, kind, detail)
        self.suspects.append(
            SuspectModule(step=step, module=module, where=where, kind=kind, detail=detail)
        )
        return [{"type": SUSPECT, **asdict(self.suspects[-1])}]

    def _place(self, record: dict[str, Any]) -> tuple[str, str] | None:
        """Return the module and side that a record belongs to, or None if `watch` did not save
        it.
        """
        kind = record.get("type")
        if kind not in (VALUE, GRAD) or record.get("recompute"):
            return None
        name = str(record["key" if kind == VALUE else "of"]).rsplit(".", 2)[0]
        module, _, side = name.rpartition(".")
        if module not in self._modules or side not in ("input", "output"):
            return None
        return module, side if kind == VALUE else f"gradient of {side}"

    def _judge(self, key: tuple[str, ...], leaf: Leaf) -> tuple[str, str] | None:
        num_nan = leaf.get("num_nan", 0)
        num_inf = leaf.get("num_inf", 0)
        if num_nan or num_inf:
            return (
                NON_FINITE,
                f"{num_nan} NaN and {num_inf} Inf among {math.prod(leaf['shape'])} values",
            )
        level = level_of(leaf)
        if level is None:
            return None
        history = self._history.setdefault(key, deque(maxlen=_MAX_HISTORY))
        usual = Spread(list(history))
        history.append(level)
        if not is_outlying(level, usual):
            return None
        return OUTLYING, f"root mean square {2**level:.3g}, before {2**usual.median:.3g}"


def _choose(model: Any, modules: Iterable[str] | None) -> dict[str, Any]:
    """Return the modules to watch by name; patterns as in a shell. Raise SettingError if a pattern
    matches nothing.
    """
    if modules is None:
        modules = ["*"]
    elif isinstance(modules, str):
        modules = [modules]
    named = {name or _ROOT: module for name, module in model.named_modules()}
    chosen: set[str] = set()
    for pattern in modules:
        matching = fnmatch.filter(named, pattern)
        if not matching:
            cause = f"the model has {', '.join(list(named)[:20])}"
            raise SettingError(
                f"no module matches {pattern!r}", cause=cause, hint=did_you_mean(pattern, named)
            )
        chosen.update(matching)
    return {name: module for name, module in named.items() if name in chosen}
