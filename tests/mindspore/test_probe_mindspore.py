"""The probe on MindSpore itself: `make test-mindspore` runs this in an environment of its own,
without torch.

The program is the one whose dump by msprobe lies in tests/golden/data/probe/ms_stat. Nothing here
runs elsewhere: without MindSpore the module is skipped.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore: Any = pytest.importorskip("mindspore")

from sonde.probe import PrecisionDebugger  # noqa: E402  (after the skip)

# after the check that MindSpore is there
from sonde.probe.compare import DIFFERENT, Tolerance, compare_dumps  # noqa: E402
from sonde.probe.dump import read_dump  # noqa: E402  after the check that MindSpore is there
from sonde.probe.walk import leaves  # noqa: E402  after the check that MindSpore is there

GOLDEN = Path(__file__).parents[1] / "golden" / "data" / "probe"
SINGLE_14 = float(np.float32(math.sqrt(14)))
BETTER = {
    ("dt_Float16.0.debug", "Norm"): SINGLE_14,  # msprobe rounds to the tensor's own 11 bits
    ("dt_Float64.0.debug", "Norm"): math.sqrt(14),  # and here to float32
    ("dt_Int64.0.debug", "Norm"): math.sqrt(14),
    ("dt_Int8.0.debug", "Norm"): math.sqrt(14),
    ("dt_UInt8.0.debug", "Norm"): math.sqrt(14),
    ("scalar0d.0.debug", "Norm"): 3.5,  # a norm is not negative
    ("nan.0.debug", "Max"): math.nan,  # of a vector with a NaN, as in PyTorch
    ("nan.0.debug", "Min"): math.nan,
}


def run_program(save: Any) -> None:
    tensor = mindspore.Tensor
    save({"key1": "value1", "key2": [1, 2]}, "dict_variable", save_backward=False)
    w = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    x = tensor(np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], np.float32))

    def forward(w: Any) -> Any:
        h = w * x
        save(h, "h")
        y = mindspore.ops.relu(h)
        save(
            {"w": w, "acts": [h, (y, x)], "n": 3, "f": 0.5, "b": True, "s": "str"},
            "nest",
            save_backward=True,
        )
        save(h, "h")
        return y.sum() * 2

    gradient = mindspore.grad(forward)(w)
    assert gradient.asnumpy().tolist() == [[0, 0, 6], [8, 10, 0]]
    for name in ("float16", "float64", "int64", "int8", "uint8", "bool_", "complex64"):
        dtype = getattr(mindspore, name)
        save(tensor(np.array([[1, 0], [3, 2]])).astype(dtype), f"dt_{dtype}", save_backward=False)
    rest: dict[str, Any] = {
        "scalar0d": tensor(-3.5, mindspore.float32),
        "empty": tensor(np.empty((0, 4), np.float32)),
        "nan": tensor(np.array([1.0, np.nan, np.inf], np.float32)),
        "py_int": 7,
        "py_float": 2.5,
        "py_str": "hello",
        "py_bool": True,
        "np_f64": np.float64(1.5),
    }
    for name, value in rest.items():
        save(value, name, save_backward=False)


@pytest.fixture
def dump_path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "dump"
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


def is_same(a: Any, b: Any) -> bool:
    return bool(a == b) or (
        isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    )


def test_the_golden_program_has_msprobes_schema_and_values(dump_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path)
    run_program(debugger.save)
    debugger.step()
    document = json.loads((dump_path / "step0" / "rank" / "debug.json").read_bytes())
    golden = json.loads((GOLDEN / "ms_stat" / "debug.json").read_bytes())
    assert document["framework"] == golden["framework"] == "mindspore"
    assert list(document["data"]) == list(golden["data"])
    for key, theirs in golden["data"].items():
        for (our_way, ours), (their_way, leaf) in zip(
            leaves(document["data"][key]), leaves(theirs), strict=True
        ):
            assert our_way == their_way
            assert (ours is None) == (leaf is None)
            for field, value in (leaf or {}).items():
                assert ours is not None
                assert is_same(ours[field], BETTER.get((key, field), value)), (
                    key,
                    field,
                    ours[field],
                )
    assert "torch" not in sys.modules


def test_bfloat16_is_reported_and_does_not_crash(dump_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path, task="tensor", summary_mode="md5")
    debugger.save(mindspore.Tensor(np.array([[1, 0], [3, 2]])).astype(mindspore.bfloat16), "x")
    debugger.step()
    dump = read_dump(dump_path / "step0" / "rank")
    leaf = dump.data["x.0.debug"]
    assert (leaf["dtype"], leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) == (
        "BFloat16",
        3.0,
        0.0,
        1.5,
        SINGLE_14,
    )
    assert leaf["md5"] == "6eb68f18"  # of its float32 bytes, as in msprobe
    assert dump.load(leaf).tolist() == [[1.0, 0.0], [3.0, 2.0]]


def test_tensor_mode_writes_npy_files(dump_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path, task="tensor")
    run_program(debugger.save)
    debugger.step()
    names = {path.name for path in (dump_path / "step0" / "rank" / "dump_tensor_data").iterdir()}
    assert {"h.0.tensor.npy", "h_grad.1.tensor.npy", "nest.0.tensor.acts.1.0.npy"} <= names


def test_the_value_saved_is_the_value_at_the_call(dump_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path)
    value = mindspore.Tensor(np.full(1000, 5, np.float32))
    debugger.save(value, "x", save_backward=False)
    value[:] = 0
    assert float(value.asnumpy().max()) == 0
    debugger.step()
    assert read_dump(dump_path / "step0" / "rank").data["x.0.debug"]["Max"] == 5.0


def test_two_passes_have_gradients_of_their_own(dump_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path)

    def forward(w: Any) -> Any:
        h = w * 2
        debugger.save(h, "h")
        return (h * 3).sum()

    for _ in range(2):
        mindspore.grad(forward)(mindspore.Tensor(np.ones(2, np.float32)))
    debugger.step()
    data = read_dump(dump_path / "step0" / "rank").data
    assert [data[f"h_grad.{count}.debug"]["Max"] for count in (0, 1)] == [3.0, 3.0]


def test_its_dump_compares_with_pytorchs(dump_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=dump_path)
    run_program(debugger.save)
    debugger.step()
    comparisons = compare_dumps(GOLDEN / "pt_stat", dump_path, Tolerance())
    shared = [comparison for comparison in comparisons if comparison.by != "missing"]
    # msprobe's negative norm
    assert {comparison.key for comparison in shared if comparison.verdict == DIFFERENT} == {
        "scalar0d.0.debug"
    }
    assert len(shared) > 20
