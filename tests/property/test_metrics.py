"""Random programs of nested levels, against an oracle that keeps every value in a list and adds
with fractions.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sonde import metrics

KEYS = ["loss", "acc"]
NAMES = ["train", "inner", "valid"]

values = (
    st.sampled_from([math.nan, math.inf, -math.inf, 1e12, -1e-12])
    | st.floats(-10, 10)
    | st.integers(-5, 5)
)
weights = st.sampled_from([0, 1, 1, 1, 3, 0.5, 0.25])


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    metrics.reset()


class BoomError(Exception):
    pass


@dataclass
class OracleLevel:
    name: str | None
    logged: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        shown: dict[str, float] = {}
        for key, pairs in self.logged.items():
            if not pairs:
                continue
            finite = [(v * w, w) for v, w in pairs if math.isfinite(v * w)]
            weight = sum((Fraction(w) for _, w in finite), Fraction(0))
            total = sum((Fraction(p) for p, _ in finite), Fraction(0))
            shown[key] = _as_float(total / weight) if weight else pairs[-1][0]
            if len(finite) < len(pairs):
                shown[f"{key}_nonfinite"] = len(pairs) - len(finite)
        return shown


class Oracle:
    """The stack as fairseq describes it, with nothing clever."""

    def __init__(self) -> None:
        self.named = {"default": OracleLevel("default")}
        self.stack = [self.named["default"]]
        self.left: list[OracleLevel] = []

    def run(self, program: Sequence[Any]) -> None:
        for statement in program:
            match statement:
                case ("log" | "log_tensor", key, value, weight):
                    for level in self.stack:
                        level.logged.setdefault(key, []).append((float(value), weight))
                case ("reset_meters", name):
                    for pairs in self.named[name].logged.values() if name in self.named else ():
                        pairs.clear()
                case ("reset_meter", name, key):
                    if name in self.named and key in self.named[name].logged:
                        self.named[name].logged[key].clear()
                case ("block", name, new_root, _, body):
                    self._block(name, new_root, body)

    def _block(self, name: str | None, new_root: bool, body: Sequence[Any]) -> None:
        level = (
            OracleLevel(None) if name is None else self.named.setdefault(name, OracleLevel(name))
        )
        before = self.stack
        if new_root:
            self.stack = [level]
        elif level not in before:
            self.stack = [*before, level]
        self.run(body)
        self.stack = before
        if name is None:
            self.left.append(level)


class Subject:
    """The same program through the public functions."""

    def __init__(self) -> None:
        self.left: list[metrics.Aggregator] = []

    def run(self, program: Sequence[Any]) -> None:
        for statement in program:
            match statement:
                case ("log", key, value, weight):
                    metrics.log_scalar(key, value, weight)
                case ("log_tensor", key, value, weight):
                    metrics.log_scalar(key, torch.tensor(value, dtype=torch.float64), weight)
                case ("reset_meters", name):
                    metrics.reset_meters(name)
                case ("reset_meter", name, key):
                    metrics.reset_meter(name, key)
                case ("read",):
                    for aggregator in metrics.get_active_aggregators():
                        aggregator.get_smoothed_values()
                case ("block", name, new_root, raises, body):
                    self._block(name, new_root, raises, body)

    def _block(self, name: str | None, new_root: bool, raises: bool, body: Sequence[Any]) -> None:
        aggregator: metrics.Aggregator | None = None
        try:
            with metrics.aggregate(name, new_root=new_root) as aggregator:
                self.run(body)
                if raises:
                    raise BoomError
        except BoomError:
            pass
        if name is None:
            assert aggregator is not None
            self.left.append(aggregator)


def _as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _programs() -> st.SearchStrategy[list[Any]]:
    simple = st.one_of(
        st.tuples(st.just("log"), st.sampled_from(KEYS), values, weights),
        st.tuples(st.just("log"), st.sampled_from(KEYS), values, weights),
        st.tuples(st.just("log_tensor"), st.sampled_from(KEYS), values, weights),
        st.tuples(st.just("reset_meters"), st.sampled_from(["default", *NAMES])),
        st.tuples(
            st.just("reset_meter"), st.sampled_from(["default", *NAMES]), st.sampled_from(KEYS)
        ),
        st.just(("read",)),
    )
    return st.recursive(
        st.lists(simple, max_size=6),
        lambda body: st.lists(
            simple
            | st.tuples(
                st.just("block"),
                st.sampled_from([None, *NAMES]),
                st.booleans(),
                st.booleans(),
                body,
            ),
            max_size=6,
        ),
        max_leaves=12,
    )


def _same(ours: dict[str, float], oracle: dict[str, float]) -> bool:
    return sorted(ours) == sorted(oracle) and all(
        ours[key] == pytest.approx(oracle[key], rel=1e-9, abs=1e-3, nan_ok=True) for key in ours
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(_programs())
@example([("log", "loss", 1.0, 0), ("block", None, False, False, [("log", "loss", 0.0, 0)])])
def test_any_program_of_nested_logs_equals_the_naive_oracle(program: list[Any]) -> None:
    metrics.reset()
    oracle = Oracle()
    subject = Subject()
    oracle.run(program)
    subject.run(program)
    assert [level.name for level in metrics.get_active_aggregators()] == ["default"]
    for name, level in oracle.named.items():
        assert _same(metrics.get_smoothed_values(name), level.values())
    assert len(subject.left) == len(oracle.left)
    for aggregator, level in zip(subject.left, oracle.left, strict=True):
        assert _same(aggregator.get_smoothed_values(), level.values())


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(_programs(), _programs())
def test_a_run_saved_and_restored_goes_on_as_if_nothing_happened(
    first: list[Any], second: list[Any]
) -> None:
    metrics.reset()
    oracle = Oracle()
    subject = Subject()
    oracle.run([*first, *second])
    subject.run(first)
    saved = json.loads(json.dumps(metrics.state_dict(), allow_nan=False))
    metrics.reset()
    metrics.log_scalar("loss", 1e9)
    metrics.load_state_dict(saved)
    subject.run(second)
    for name, level in oracle.named.items():
        assert _same(metrics.get_smoothed_values(name), level.values())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(), st.sampled_from([0.0, 1.0, 7.0, 1e-300, 0.1])),
        min_size=1,
        max_size=20,
    )
)
def test_tensors_give_the_same_tallies_as_floats(pairs: list[tuple[float, float]]) -> None:
    for meter_type in (
        metrics.Average,
        metrics.Sum,
        metrics.Maximum,
        metrics.Minimum,
        metrics.Quantile,
    ):
        by_number = meter_type()
        by_tensor = meter_type()
        for value, weight in pairs:
            by_number.update(value, weight)
            by_tensor.update(torch.tensor(value, dtype=torch.float64), weight)
        assert by_tensor.state_dict() == by_number.state_dict()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e11, 1e11), min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_within_a_hundredth_and_a_tiny_amount(floats: list[float], q: float) -> None:
    meter = metrics.Quantile(q)
    for value in floats:
        meter.update(value)
    true = sorted(floats)[max(1, math.ceil(q * len(floats))) - 1]
    assert meter.value == pytest.approx(true, rel=1 / 128, abs=2.0**-40)
