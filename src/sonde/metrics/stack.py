"""The stack of nested levels: the active aggregators of this thread or asyncio task; logging to and
reading them.

    default                      active from the start: statistics of the whole run
    └── aggregate("train")       a field logged here is logged in default too
        └── aggregate()          … and here in all three
            └── aggregate("valid", new_root=True)    hides everything outside it, default too

The stack is a context variable: an asyncio task starts with a copy of its creator's stack, a new
thread with only `default` (to pass the stack on, run the target through
`contextvars.copy_context().run`). Named aggregators are shared by the whole process. Entering and
leaving a level costs about 3 µs of CPU.

The log functions reach every aggregator that is active where they are called. The first call with a
key creates its meter; that call's priority and rounding stay in effect. Values may be numbers or
one-element tensors, and nothing waits for a device. `log_scalar` of a float costs about 0.6 µs of
CPU through three levels (benchmarks/metrics.py).
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, cast

from sonde.errors import SettingError
from sonde.metrics.aggregator import Aggregator, Derived, Function, UnknownMetricError
from sonde.metrics.meter import LOCK, ForeignMeter, Meter, scalar_of
from sonde.metrics.meters import Average, Rate, Stopwatch, Sum

P = ParamSpec("P")
R = TypeVar("R")
MeterT = TypeVar("MeterT", bound=Meter)

DEFAULT: Final = "default"


def aggregate(name: str | None = None, new_root: bool = False) -> "Aggregation":
    """Return a level to log into: `with aggregate("train") as agg:` or `@aggregate("train")`.

    A name refers to one aggregator of the process, which continues where it left off; without a
    name, each entry gets a new one. `new_root` hides the outer levels.

    ```python
    from sonde import metrics

    with metrics.aggregate("epoch") as epoch:
        for _ in range(2):
            with metrics.aggregate("step", new_root=False):
                metrics.log_scalar("loss", 2.5)
    assert epoch.get_smoothed_value("loss") == 2.5
    ```
    """
    if name is not None and (type(name) is not str or name == DEFAULT):
        raise SettingError(
            f"an aggregator cannot be called {name!r}",
            hint=(
                f"{DEFAULT!r} is always active; choose another string, or none for an anonymous"
                " aggregator"
            ),
        )
    return Aggregation(name, new_root)


def get_active_aggregators() -> list[Aggregator]:
    """Return the aggregators that a log call would reach from here, outermost first."""
    return list(ACTIVE.get().aggregators)


def named(name: str) -> Aggregator:
    """Return the aggregator with this name, creating it if necessary."""
    with LOCK:
        return NAMED.setdefault(name, Aggregator(name))


def get_aggregator(name: str) -> Aggregator:
    """Return the aggregator with this name; raise KeyError if it was never entered.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        metrics.log_scalar("loss", 2.5)
    assert metrics.get_aggregator("train") is level
    ```
    """
    aggregator = NAMED.get(name)
    if aggregator is None:
        raise UnknownMetricError(name, NAMED, "aggregator")
    return aggregator


def get_meters(name: str) -> Aggregator | None:
    """Return the aggregator with this name, or None."""
    return NAMED.get(name)


def get_meter(name: str, key: str) -> Meter | None:
    """Return one meter of one aggregator, or None.

    ```python
    from sonde import metrics

    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.5)
    assert metrics.get_meter("train", "loss").avg == 2.5
    ```
    """
    return NAMED[name].get(key) if name in NAMED else None


def get_smoothed_value(name: str, key: str) -> float:
    """Return one value of one aggregator, rounded for display; raise KeyError if there is none.

    ```python
    from sonde import metrics

    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.5)
    assert metrics.get_smoothed_value("train", "loss") == 2.5
    ```
    """
    return get_aggregator(name).get_smoothed_value(key)


def get_smoothed_values(name: str) -> dict[str, float]:
    """Return all values of one aggregator, in display order; raise KeyError if it was never
    entered.

    ```python
    from sonde import metrics

    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.5)
    assert metrics.get_smoothed_values("train") == {"loss": 2.5}
    ```
    """
    return get_aggregator(name).get_smoothed_values()


def reset_meter(name: str, key: str) -> None:
    """Reset one meter of one aggregator; do nothing if it does not exist."""
    meter = get_meter(name, key)
    if meter is not None:
        meter.reset()


def reset_meters(name: str) -> None:
    """Reset all meters of one aggregator; do nothing if it does not exist.

    ```python
    from sonde import metrics

    with metrics.aggregate("train"):
        metrics.log_scalar("loss", 2.5)
    metrics.reset_meters("train")
    assert metrics.get_smoothed_values("train") == {}
    ```
    """
    if name in NAMED:
        NAMED[name].reset()


def reset() -> None:
    """Remove every meter from every named aggregator, as at the start of the process.

    ```python
    from sonde import metrics

    metrics.log_scalar("loss", 2.5)
    metrics.reset()
    assert metrics.get_smoothed_values("default") == {}
    ```
    """
    with LOCK:
        for aggregator in NAMED.values():
            aggregator.clear()


def state_dict() -> dict[str, Any]:
    """Return the state of every named aggregator as JSON-compatible data.

    ```python
    from sonde import metrics

    metrics.log_scalar("loss", 2.5)
    state = metrics.state_dict()  # plain data, for your checkpoint
    metrics.reset()
    metrics.load_state_dict(state)
    assert metrics.get_smoothed_value("default", "loss") == 2.5
    ```
    """
    with LOCK:
        return {name: aggregator.state_dict() for name, aggregator in NAMED.items()}


def load_state_dict(state: Mapping[str, Any]) -> None:
    """Restore every named aggregator exactly; those missing from `state` are emptied. Active levels
    stay active.
    """
    with LOCK:
        reset()
        for name, aggregator_state in state.items():
            named(name).load_state_dict(aggregator_state)


class Frame(NamedTuple):
    """One entry of the stack; a context's stack is its innermost frame."""

    aggregators: tuple[Aggregator, ...]
    entered: "tuple[Aggregation, Aggregator] | None" = None
    outer: "Frame | None" = None

    def inside(self, aggregation: "Aggregation", aggregator: Aggregator) -> "Frame":
        """Return the stack with one more entry."""
        if aggregation.new_root:
            aggregators: tuple[Aggregator, ...] = (aggregator,)
        elif aggregator in self.aggregators:
            aggregators = self.aggregators
        else:
            aggregators = (*self.aggregators, aggregator)
        return Frame(aggregators, (aggregation, aggregator), self)

    def without(self, aggregation: "Aggregation") -> "Frame":
        """Return the stack without the innermost entry of `aggregation`."""
        if self.entered is None or self.outer is None:
            return self
        if self.entered[0] is aggregation:
            return self.outer
        outer = self.outer.without(aggregation)
        return self if outer is self.outer else outer.inside(*self.entered)


class Aggregation:
    """The result of `aggregate`: a reusable context manager and decorator, usable from several
    threads at once.
    """

    __slots__ = ("name", "new_root")

    def __init__(self, name: str | None, new_root: bool) -> None:
        self.name = name
        self.new_root = new_root

    def __enter__(self) -> Aggregator:
        aggregator = Aggregator() if self.name is None else named(self.name)
        ACTIVE.set(ACTIVE.get().inside(self, aggregator))
        return aggregator

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Usually the innermost entry, but a generator that yields inside its `with` may leave in
        # another order.
        ACTIVE.set(ACTIVE.get().without(self))

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap `function` to run inside this level; every call enters it again."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SettingError(
                f"aggregate cannot decorate the generator {function.__qualname__}: its body runs"
                " after the call has returned",
                hint="write `with metrics.aggregate(...):` inside it",
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with Aggregation(self.name, self.new_root):
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", run_async)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with Aggregation(self.name, self.new_root):
                return function(*args, **kwargs)

        return run


NAMED: Final[dict[str, Aggregator]] = {DEFAULT: Aggregator(DEFAULT)}
"""Every named aggregator."""

_OUTERMOST: Final = Frame((NAMED[DEFAULT],))
ACTIVE: Final[ContextVar[Frame]] = ContextVar("sonde_active_levels", default=_OUTERMOST)
"""The stack of this context."""


def log_scalar(
    key: str,
    value: object,
    weight: object = 1,
    priority: int = 10,
    round: int | None = None,  # noqa: A002  fairseq's name for it
) -> None:
    """Add a value to a weighted average. With weight 0 only the latest value is shown (e.g. a
    learning rate).

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        metrics.log_scalar("loss", 4.0, weight=100)
        metrics.log_scalar("loss", 2.0, weight=300, round=3)
    assert level.get_smoothed_value("loss") == 2.5
    ```

    Args:
        key: The name of the metric.
        value: The value; None is ignored.
        weight: Its weight in the average.
        priority: Orders metrics on a progress line, lowest first.
        round: Show this many digits after the point.
    """
    if type(value) is float and (type(weight) is int or type(weight) is float):
        try:
            product = value * weight
        except OverflowError:  # an integer too large for a float
            product = math.inf
        if product - product == 0.0:  # finite: do what `update` does, without its calls
            for aggregator in ACTIVE.get().aggregators:
                meter = aggregator.by_key.get(key)
                if type(meter) is not Average:
                    meter = _average(aggregator, key, priority, round)
                # No lock, which would add half of the cost again: the interpreter switches threads
                # at calls and jumps, not here.
                meter._sum += product
                meter._count += weight
                meter._val = value
            return
    exact = None if value is None else (scalar_of(value, "value"), scalar_of(weight, "weight"))
    for aggregator in ACTIVE.get().aggregators:
        meter = _average(aggregator, key, priority, round)
        if exact is not None:
            meter.absorb(*exact)


# fairseq's name for it
def log_scalar_sum(key: str, value: object, priority: int = 10, round: int | None = None) -> None:  # noqa: A002
    """Add a value to a sum.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        for _ in range(3):
            metrics.log_scalar_sum("tokens", 100)
    assert level.get_smoothed_value("tokens") == 300
    ```
    """
    for aggregator in ACTIVE.get().aggregators:
        _meter(aggregator, key, Sum, lambda: Sum(round), priority).update(value)


# fairseq's name for it
def log_derived(key: str, fn: Function, priority: int = 20, round: int | None = None) -> None:  # noqa: A002
    """Show `fn(meters)`, computed in each aggregator from its own meters whenever it is read.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        metrics.log_scalar("loss", 3.0)
        metrics.log_derived("ppl", lambda meters: 2 ** meters["loss"].avg)
    assert level.get_smoothed_value("ppl") == 8.0
    ```
    """
    for aggregator in ACTIVE.get().aggregators:
        make = functools.partial(Derived, fn, aggregator, round)
        _meter(aggregator, key, Derived, make, priority).update(fn)


# fairseq's name for it
def log_speed(key: str, value: object, priority: int = 30, round: int | None = None) -> None:  # noqa: A002
    """Count `value` items per second. The first call only starts the clock: what it counts happened
    earlier.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        for _ in range(3):
            metrics.log_speed("tokens/s", 100, round=0)
    assert level.get_smoothed_value("tokens/s") > 0
    ```
    """
    for aggregator in ACTIVE.get().aggregators:
        if key in aggregator.by_key:
            _meter(aggregator, key, Rate, Rate, priority).update(value)
        else:
            _meter(aggregator, key, Rate, lambda: Rate(round), priority)


# fairseq's name for it
def log_start_time(key: str, priority: int = 40, round: int | None = None) -> None:  # noqa: A002
    """Start a stopwatch in every active aggregator.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        metrics.log_start_time("forward", round=3)
        sum(range(1000))
        metrics.log_stop_time("forward", weight=1)
    assert level.get_smoothed_value("forward") >= 0
    ```
    """
    for aggregator in ACTIVE.get().aggregators:
        _meter(aggregator, key, Stopwatch, lambda: Stopwatch(round), priority).start()


def log_stop_time(
    key: str, weight: object = 0.0, prehook: Callable[[], object] | None = None
) -> None:
    """Stop the stopwatch where it was started, after calling `prehook` (e.g.
    `torch.cuda.synchronize`).

    With weights it shows seconds per unit of weight; without, the total.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        metrics.log_start_time("forward")
        metrics.log_stop_time("forward", weight=1)
    assert "forward" in level.get_smoothed_values()
    ```
    """
    for aggregator in ACTIVE.get().aggregators:
        meter = aggregator.by_key.get(key)
        if isinstance(meter, Stopwatch):
            meter.stop(weight, prehook)


def log_custom(
    new_meter_fn: Callable[[], Any], key: str, *args: Any, priority: int = 50, **kwargs: Any
) -> None:
    """Update any other meter with `args` and `kwargs`, e.g. `log_custom(Maximum, "grad_norm_max",
    norm)`.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        for seconds in (0.1, 0.3, 2.0):
            metrics.log_custom(metrics.Maximum, "slowest", seconds)
    assert level.get_smoothed_value("slowest") == 2.0
    ```
    """

    def make() -> Meter:
        meter = new_meter_fn()
        return meter if isinstance(meter, Meter) else ForeignMeter(meter)

    for aggregator in ACTIVE.get().aggregators:
        # only used for isinstance
        _meter(aggregator, key, Meter, make, priority).update(*args, **kwargs)  # type: ignore[type-abstract]


def _average(aggregator: Aggregator, key: str, priority: int, digits: int | None) -> Average:
    return _meter(aggregator, key, Average, lambda: Average(digits), priority)


def _meter(
    aggregator: Aggregator,
    key: str,
    expected: type[MeterT],
    make: Callable[[], MeterT],
    priority: int,
) -> MeterT:
    with LOCK:
        meter = aggregator.by_key.get(key)
        if meter is None:
            meter = make()
            aggregator.add_meter(key, meter, priority)
    if not isinstance(meter, expected):
        raise SettingError(
            f"{key!r} is already a {meter.kind} in the aggregator {aggregator.name!r}, not a"
            f" {expected.kind}",
            hint="use another key",
        )
    return meter
