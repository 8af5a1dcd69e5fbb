"""Comparing two dumps: what differs, by how much, where it began."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.errors import SettingError
from sonde.probe import PrecisionDebugger
from sonde.probe.compare import (
    DIFFERENT,
    NOT_COMPARED,
    SAME,
    Comparison,
    Tolerance,
    compare_dumps,
    first_difference,
)

Start = Callable[..., PrecisionDebugger]
EXACT = Tolerance()


def document(folder: Path, data: dict[str, Any], **header: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "debug.json"
    path.write_text(
        json.dumps({"task": "statistics", "framework": "pytorch", **header, "data": data})
    )
    return path


def tensor(**fields: Any) -> dict[str, Any]:
    statistics = {"Max": 2.0, "Min": 1.0, "Mean": 1.5, "Norm": 3.0}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], **statistics, **fields}


def compare_two(
    tmp_path: Path, a: Any, b: Any, tolerance: Tolerance = EXACT, **header: Any
) -> Comparison:
    left = document(tmp_path / "a", {"x.0.debug": a})
    right = document(tmp_path / "b", {"x.0.debug": b}, **header)
    (one,) = compare_dumps(left, right, tolerance)
    return one


def save_all(probe: Start, path: Path, values: dict[str, Any], **settings: Any) -> Path:
    debugger = probe(dump_path=path, **settings)
    for name, value in values.items():
        debugger.save(value, name, save_backward=False)
    debugger.close()
    return path


def test_a_dump_equals_itself_and_the_first_difference_is_the_first_executed(
    probe: Start, tmp_path: Path
) -> None:
    values = {"z": torch.ones(3), "a": torch.arange(3.0), "m": {"k": [1, "s"]}}
    a = save_all(probe, tmp_path / "a", values)
    assert {comparison.verdict for comparison in compare_dumps(a, a, EXACT)} == {SAME}
    b = save_all(probe, tmp_path / "b", values | {"a": torch.arange(3.0) + 1, "m": {"k": [2, "t"]}})
    comparisons = compare_dumps(a, b, EXACT)
    first = first_difference(comparisons)
    assert first is not None
    assert (first.key, first.by, first.detail) == ("a.0.debug", "statistics", "Max 2.0 and 3.0")
    assert [comparison.key for comparison in comparisons if comparison.verdict == DIFFERENT] == [
        "a.0.debug",
        "m.0.debug.k.0",
        "m.0.debug.k.1",
    ]


def test_whole_tensors_are_compared_value_by_value(probe: Start, tmp_path: Path) -> None:
    a = save_all(
        probe, tmp_path / "a", {"x": torch.tensor([[1.0, 2.0], [4.0, math.nan]])}, task="tensor"
    )
    b = save_all(
        probe, tmp_path / "b", {"x": torch.tensor([[1.0, 2.0], [5.0, math.nan]])}, task="tensor"
    )
    (one,) = compare_dumps(a, b, EXACT)
    assert (one.verdict, one.by, one.max_abs_error, one.max_rel_error) == (
        DIFFERENT,
        "tensor",
        1.0,
        0.2,
    )
    assert one.cosine == pytest.approx(25 / math.sqrt(21 * 30))
    assert one.detail == "1 of 4 values, first at [1, 0]: 4.0 and 5.0"
    (one,) = compare_dumps(a, b, Tolerance(relative=0.2))
    assert one.verdict == SAME


def test_values_that_statistics_cannot_tell_apart_differ_by_hash(
    probe: Start, tmp_path: Path
) -> None:
    values = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    a, b = (
        save_all(probe, tmp_path / str(n), {"x": value}, summary_mode="md5")
        for n, value in enumerate(values)
    )
    (one,) = compare_dumps(a, b, EXACT)
    assert (one.verdict, one.by, one.max_abs_error) == (DIFFERENT, "hash", 0.0)
    (one,) = compare_dumps(a, b, Tolerance(relative=1e-6))
    assert (one.verdict, one.by) == (SAME, "statistics")


def test_null_against_null_is_not_compared_and_never_the_same(tmp_path: Path) -> None:
    empty = tensor(Max=None, Min=None, Mean=None, Norm=None)
    assert compare_two(tmp_path, None, None).verdict == NOT_COMPARED
    assert compare_two(tmp_path, empty, empty).verdict == NOT_COMPARED
    assert (
        compare_two(tmp_path, empty | {"num_nan": 0}, empty | {"num_nan": 0}).verdict
        == NOT_COMPARED
    )
    assert compare_two(tmp_path, tensor(), None).verdict == DIFFERENT
    assert compare_two(tmp_path, tensor(), empty).verdict == NOT_COMPARED


def test_a_scalar_that_msprobe_wrote_as_its_own_norm_is_no_difference(tmp_path: Path) -> None:
    value = {"Max": -2.0, "Min": -2.0, "Mean": -2.0, "shape": []}
    theirs = document(tmp_path / "a", {"x.0.debug": tensor(**value, Norm=-2.0)})
    ours = document(tmp_path / "b", {"x.0.debug": tensor(**value, Norm=2.0)})
    (row,) = compare_dumps(theirs, ours, EXACT)
    assert row.verdict == SAME


def test_frameworks_compare_by_the_kind_of_dtype(tmp_path: Path) -> None:
    theirs = tensor(type="mindspore.Tensor", dtype="Float32")
    assert compare_two(tmp_path, tensor(), theirs, framework="mindspore").verdict == SAME
    assert compare_two(tmp_path, tensor(), tensor(dtype="Float16")).by == "dtype"
    a = tensor(dtype="torch.bfloat16", md5="1")
    b = tensor(dtype="BFloat16", md5="2")
    assert compare_two(tmp_path, a, b, framework="mindspore").by == "statistics"
    assert compare_two(tmp_path, a, b).by == "hash"


@pytest.mark.parametrize(
    ("a", "b", "by"),
    [
        (tensor(shape=[2]), tensor(shape=[1, 2]), "shape"),
        (tensor(), {"type": "int", "value": 3}, "type"),
        ({"type": "NoneType", "value": None}, {"type": "torch.device"}, "type"),
        ({"type": "str", "value": "a"}, {"type": "str", "value": "b"}, "value"),
        ({"type": "int", "value": 1}, {"type": "int", "value": 2}, "value"),
        (tensor(num_nan=1), tensor(num_nan=2), "statistics"),
        (tensor(Max=math.inf), tensor(Max=2.0), "statistics"),
    ],
)
def test_what_is_not_the_same_is_told_by_what_it_is(
    tmp_path: Path, a: Any, b: Any, by: str
) -> None:
    one = compare_two(tmp_path, a, b)
    assert (one.verdict, one.by) == (DIFFERENT, by)
    assert one.detail


def test_nan_equals_nan_and_an_infinity_itself(tmp_path: Path) -> None:
    leaf = tensor(Max=math.inf, Min=math.nan)
    assert compare_two(tmp_path, leaf, leaf).verdict == SAME


def test_tolerances_are_relative_to_the_second(tmp_path: Path) -> None:
    a = tensor(Mean=1.0)
    b = tensor(Mean=1.1)
    assert compare_two(tmp_path, a, b).max_abs_error == pytest.approx(0.1)
    assert compare_two(tmp_path, a, b, Tolerance(relative=0.1)).verdict == SAME
    assert compare_two(tmp_path, a, b, Tolerance(relative=0.05)).verdict == DIFFERENT
    assert compare_two(tmp_path, a, b, Tolerance(absolute=0.11)).verdict == SAME


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf])
def test_a_tolerance_that_means_nothing_is_refused(tolerance: float) -> None:
    with pytest.raises(SettingError, match="rtol"):
        Tolerance(relative=tolerance)


def test_what_only_one_side_has_is_a_difference(tmp_path: Path) -> None:
    document(tmp_path / "a" / "step0" / "rank0", {"x.0.debug": tensor()})
    document(tmp_path / "a" / "step1" / "rank0", {"x.0.debug": tensor()})
    document(tmp_path / "b" / "step0" / "rank0", {"y.0.debug": tensor()})
    comparisons = compare_dumps(tmp_path / "a", tmp_path / "b", EXACT)
    assert [
        (comparison.step, comparison.key, comparison.by, comparison.detail)
        for comparison in comparisons
    ] == [
        ("0", "x.0.debug", "missing", "not in the second"),
        ("0", "y.0.debug", "missing", "not in the first"),
        ("1", "", "missing", "not in the second"),
    ]


def test_rank_against_rank_and_step_against_step(tmp_path: Path) -> None:
    for step in (0, 1):
        for rank in (0, 1):
            document(
                tmp_path / f"step{step}" / f"rank{rank}", {"x.0.debug": tensor(Mean=float(step))}
            )
    assert not first_difference(
        compare_dumps(tmp_path / "step0" / "rank0", tmp_path / "step0" / "rank1", EXACT)
    )
    between = compare_dumps(tmp_path / "step0", tmp_path / "step1", EXACT)
    assert [(comparison.process, comparison.verdict) for comparison in between] == [
        ("rank0", DIFFERENT),
        ("rank1", DIFFERENT),
    ]


def test_a_damaged_tensor_file_is_a_difference_not_a_crash(probe: Start, tmp_path: Path) -> None:
    a = save_all(probe, tmp_path / "a", {"x": torch.ones(2)}, task="tensor")
    b = save_all(probe, tmp_path / "b", {"x": torch.ones(2)}, task="tensor")
    next(b.rglob("*.pt")).write_bytes(b"damaged")
    (one,) = compare_dumps(a, b, EXACT)
    assert (one.verdict, one.by) == (DIFFERENT, "tensor")


def test_keys_of_older_versions_of_msprobe_are_those_of_ours(tmp_path: Path) -> None:
    """Up to 1.3 they end in the count: `x.0`."""
    old = document(tmp_path / "a", {"x.0": {"k": tensor()}, "x_grad.0": {"k": None}})
    ours = document(
        tmp_path / "b", {"x.0.debug": {"k": tensor(Max=2.5)}, "x_grad.0.debug": {"k": None}}
    )
    found = compare_dumps(old, ours, EXACT)
    assert [(comparison.key, comparison.verdict) for comparison in found] == [
        ("x.0.k", DIFFERENT),
        ("x_grad.0.k", NOT_COMPARED),
    ]
    assert [comparison.verdict for comparison in compare_dumps(old, old, EXACT)] == [
        SAME,
        NOT_COMPARED,
    ]
