"""Any nested value comes back as it was; statistics equal a float64 oracle; names never collide."""

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis.extra import numpy as nps

from sonde.probe import PrecisionDebugger
from sonde.probe.compare import DIFFERENT, Tolerance, compare_dumps
from sonde.probe.debugger import Calls
from sonde.probe.dump import Dump, read_dump, value_key
from sonde.probe.torch_tensors import describe
from sonde.probe.walk import Leaf, is_leaf

ARRAYS = nps.arrays(
    st.sampled_from([np.dtype(name) for name in ("f4", "f8", "f2", "i8", "i1", "u1", "?", "c8")]),
    nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
TENSORS = ARRAYS.map(lambda array: torch.from_numpy(np.array(array)))
VALUES = st.recursive(
    SCALARS | ARRAYS | TENSORS,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.text(max_size=8), inside, max_size=3)
        | st.tuples(inside, inside)
    ),
    max_leaves=8,
)
FLOATS32 = nps.arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32))


@contextmanager
def dumped(values: dict[str, Any]) -> Iterator[Dump]:
    with tempfile.TemporaryDirectory() as folder:
        debugger = PrecisionDebugger(dump_path=folder, task="tensor")
        try:
            for name, value in values.items():
                debugger.save(value, name)
        finally:
            debugger.close()
        yield read_dump(Path(folder) / "step0" / "rank")


def same(value: Any, tree: Any, dump: Dump) -> bool:
    """Does the tree hold exactly this value?"""
    if isinstance(value, dict):
        return list(tree) == list(value) and all(
            same(item, tree[key], dump) for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return len(tree) == len(value) and all(
            same(item, node, dump) for item, node in zip(value, tree, strict=True)
        )
    assert is_leaf(tree)
    if isinstance(value, torch.Tensor | np.ndarray):
        array = value.numpy() if isinstance(value, torch.Tensor) else value
        loaded = dump.load(tree)
        if array.size == 0:
            return loaded is None and tree["shape"] == list(array.shape)
        return (loaded.dtype, loaded.shape, loaded.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )
    read = tree["value"]
    return type(read) is type(value) and bool(read == value or (read != read and value != value))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.dictionaries(st.text(min_size=0, max_size=12), VALUES, min_size=1, max_size=3))
@example(
    {"../x": {"a/b": np.ones(1), "": [torch.ones(1)], "..": {"..": np.zeros(1)}}, "a.b": 1 << 90}
)
@example({"y": torch.ones(2, requires_grad=False), "y_grad": np.zeros(2), "y_grad~": "\ud800"})
def test_any_nested_value_comes_back_as_it_was(values: dict[str, Any]) -> None:
    calls = Calls()
    with dumped(values) as dump:
        for name, value in values.items():
            assert same(value, dump.data[value_key(calls.base(name), 0)], dump)
            calls.base(name, "_grad")


def one_ulp(value: float) -> float:
    """The distance of neighbouring float32 around `value`."""
    return float(np.spacing(np.float32(min(abs(value), 3.4e38))))


def check_statistics(leaf: Leaf, wide: np.ndarray) -> None:
    finite = wide[np.isfinite(wide)]
    assert leaf.get("num_nan", 0) == np.count_nonzero(np.isnan(wide))
    assert leaf.get("num_inf", 0) == np.count_nonzero(np.isinf(wide))
    assert leaf.get("num_zero", 0) == np.count_nonzero(wide == 0)
    moments = leaf if finite.size == wide.size else leaf["finite"]
    if not finite.size:
        assert moments["Max"] is None
        return
    assert (moments["Max"], moments["Min"]) == (finite.max(), finite.min())
    mean = math.fsum(finite.tolist()) / finite.size
    # Where values cancel, the oracle itself is no better than float64 of their size.
    slack = finite.size * 2.0**-52 * float(np.abs(finite).max())
    assert abs(moments["Mean"] - mean) <= one_ulp(mean) + slack
    norm = math.sqrt(math.fsum(number * number for number in finite.tolist()))
    assert abs(moments["Norm"] - norm) <= max(one_ulp(norm), norm * 2.0**-23)
    if np.isnan(wide).any():
        assert all(math.isnan(leaf[name]) for name in ("Max", "Min", "Mean", "Norm"))


@given(FLOATS32)
def test_statistics_equal_a_float64_oracle_within_one_ulp(array: np.ndarray) -> None:
    leaf = describe(torch.from_numpy(array), "", [])
    check_statistics(leaf, array.astype(np.float64))


@given(
    FLOATS32,
    st.sampled_from([torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]),
)
def test_statistics_of_short_floats_equal_the_oracle_of_their_values(
    array: np.ndarray, dtype: torch.dtype
) -> None:
    tensor = torch.from_numpy(array).to(dtype)
    leaf = describe(tensor, "", [])
    check_statistics(leaf, tensor.to(torch.float64).numpy())


@given(nps.arrays(np.int64, st.integers(1, 50)))
def test_integers_are_exact_at_their_ends(array: np.ndarray) -> None:
    leaf = describe(torch.from_numpy(array), "", [])
    assert (leaf["Max"], leaf["Min"]) == (array.max(), array.min())
    assert leaf["Mean"] == pytest.approx(sum(array.tolist()) / array.size, rel=1e-9, abs=2.0**13)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=3))
def test_a_dump_never_differs_from_itself_and_is_valid_for_python(values: dict[str, Any]) -> None:
    with dumped({"x": values}) as dump:
        json.loads((dump.directory / "debug.json").read_bytes())
        comparisons = compare_dumps(dump.directory, dump.directory, Tolerance())
        assert not [comparison for comparison in comparisons if comparison.verdict == DIFFERENT]
