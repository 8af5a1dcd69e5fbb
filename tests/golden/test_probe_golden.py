"""The probe beside what msprobe 26.2.0 wrote for the same program: its schema, its values, its
names, its hashes.

Where the two differ on purpose, the differences are listed here one by one; nothing else may
differ.
"""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.probe import PrecisionDebugger
from sonde.probe.compare import DIFFERENT, NOT_COMPARED, SAME, Tolerance, compare_dumps
from sonde.probe.dump import read_dump
from sonde.probe.walk import leaves

GOLDEN = Path(__file__).parent / "data" / "probe"
SINGLE_14 = float(np.float32(math.sqrt(14)))

BETTER = {
    ("dt_float16.0.debug", "Norm"): SINGLE_14,  # msprobe rounds to the tensor's own 11 bits
    ("dt_bfloat16.0.debug", "Norm"): SINGLE_14,  # and here to 8
    ("dt_float64.0.debug", "Mean"): 1.5,  # null in msprobe
    ("dt_float64.0.debug", "Norm"): math.sqrt(14),
    ("dt_int64.0.debug", "Mean"): 1.5,
    ("dt_int64.0.debug", "Norm"): math.sqrt(14),
    ("dt_int8.0.debug", "Mean"): 1.5,
    ("dt_int8.0.debug", "Norm"): math.sqrt(14),
    ("dt_uint8.0.debug", "Mean"): 1.5,
    ("dt_uint8.0.debug", "Norm"): math.sqrt(14),
    ("dt_complex64.0.debug", "Norm"): SINGLE_14,
    ("scalar0d.0.debug", "Norm"): 3.5,  # a norm is not negative
}
"""Where msprobe is wrong or silent, and what is right."""

DROPPED = ["py_none", "np_arr", "np_f32", "has_none", "has_np", "int_key"]
"""What msprobe leaves out with a warning."""


def run_program(save: Any) -> None:
    """The program whose dumps lie in data/probe, as it was run under msprobe."""
    torch.manual_seed(0)
    save({"key1": "value1", "key2": [1, 2]}, "dict_variable", save_backward=False)
    w = torch.arange(6, dtype=torch.float32).reshape(2, 3).requires_grad_()
    x = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    h = w * x
    save(h, "h")
    y = h.relu()
    save(
        {"w": w, "acts": [h, (y, x)], "n": 3, "f": 0.5, "b": True, "s": "str"},
        "nest",
        save_backward=True,
    )
    save(h, "h")
    for name in ("float16", "bfloat16", "float64", "int64", "int8", "uint8", "bool", "complex64"):
        save(
            torch.tensor([[1, 0], [3, 2]]).to(getattr(torch, name)),
            f"dt_{name}",
            save_backward=False,
        )
    rest: dict[str, Any] = {
        "scalar0d": torch.tensor(-3.5),
        "empty": torch.empty(0, 4),
        "nan": torch.tensor([1.0, math.nan, math.inf]),
        "py_int": 7,
        "py_float": 2.5,
        "py_str": "hello",
        "py_bool": True,
        "py_none": None,
        "np_arr": np.ones((2, 2), np.float32),
        "np_f64": np.float64(1.5),
        "np_f32": np.float32(1.5),
        "has_none": {"a": x, "none": None},
        "has_np": {"a": x, "np": np.ones(2)},
        "int_key": {1: x},
        "special_keys": {"dtype": x, "device": x},
        "param": torch.nn.Parameter(torch.ones(2)),
        "noncontig": x.t(),
        "empty_list": [],
        "empty_dict": {},
    }
    for name, value in rest.items():
        save(value, name, save_backward=False)
    (y.sum() * 2).backward()


@pytest.fixture
def dump_path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "dump"
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


def make_dump(path: Path, **settings: Any) -> dict[str, Any]:
    debugger = PrecisionDebugger(dump_path=path, **settings)
    run_program(debugger.save)
    debugger.step()
    document: dict[str, Any] = json.loads((path / "step0" / "rank" / "debug.json").read_bytes())
    return document


def is_same(a: Any, b: Any) -> bool:
    return bool(a == b) or (
        isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    )


def check_against(golden: dict[str, Any], data: dict[str, Any]) -> None:
    for key, theirs in golden.items():
        if key == "special_keys.0.debug":
            continue  # msprobe writes the text of the tensor; see test_bug_12
        pairs = zip(leaves(data[key]), leaves(theirs), strict=True)
        for (our_way, ours), (their_way, leaf) in pairs:
            assert our_way == their_way
            if leaf is None or ours is None:
                assert ours is leaf
                continue
            for field, value in leaf.items():
                expected = BETTER.get((key, field), value)
                assert is_same(ours[field], expected), (key, field)
    added = [key.partition(".")[0] for key in data if key not in golden]
    assert added == DROPPED


def test_statistics_have_msprobes_schema_and_values(dump_path: Path) -> None:
    document = make_dump(dump_path)
    golden = json.loads((GOLDEN / "pt_stat" / "debug.json").read_bytes())
    assert {key: document[key] for key in golden if key != "data"} == {
        key: golden[key] for key in golden if key != "data"
    }
    check_against(golden["data"], document["data"])
    assert [key for key in document["data"] if key in golden["data"]] == list(golden["data"])


def test_the_config_file_of_msprobe_gives_the_same(
    dump_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump_path.mkdir()
    monkeypatch.chdir(dump_path)
    debugger = PrecisionDebugger(str(GOLDEN / "pt_md5" / "config.json"))
    run_program(debugger.save)
    debugger.close()
    monkeypatch.undo()
    document = json.loads((dump_path / "dump_path" / "step0" / "rank" / "debug.json").read_bytes())
    check_against(
        json.loads((GOLDEN / "pt_md5" / "debug.json").read_bytes())["data"], document["data"]
    )


def test_md5_mode_has_msprobes_hashes(dump_path: Path) -> None:
    document = make_dump(dump_path, summary_mode="md5")
    check_against(
        json.loads((GOLDEN / "pt_md5" / "debug.json").read_bytes())["data"], document["data"]
    )
    assert document["data"]["dt_bfloat16.0.debug"]["md5"] == "f5601b65"


def test_tensor_mode_writes_the_files_of_msprobe_26_on_request(
    dump_path: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"file_mark": "debug"}))
    document = make_dump(dump_path, task="tensor", config_path=config)
    golden = json.loads((GOLDEN / "pt_tensor.debug.json").read_bytes())["data"]
    tree = (GOLDEN / "pt_tensor.tree.txt").read_text().split()
    theirs = {
        Path(line).name for line in tree if line.startswith("./step0") and line.endswith(".pt")
    }
    folder = dump_path / "step0" / "rank" / "dump_tensor_data"
    ours = {path.name for path in folder.iterdir()}
    assert theirs <= ours
    extra = {name.partition(".")[0] for name in ours - theirs}
    assert extra == {"has_none", "has_np", "int_key", "np_arr", "special_keys"}
    assert document["dump_data_dir"] == str(folder)
    for key, tree_of_key in golden.items():
        for (_, leaf), (_, their) in zip(
            leaves(document["data"][key]), leaves(tree_of_key), strict=True
        ):
            if their and "data_name" in their:
                assert leaf is not None
                assert leaf["data_name"] == their["data_name"]
                assert isinstance(
                    torch.load(folder / leaf["data_name"], weights_only=True), torch.Tensor
                )


def test_our_dump_compares_with_msprobes(dump_path: Path) -> None:
    make_dump(dump_path)
    comparisons = compare_dumps(dump_path, GOLDEN / "pt_stat", Tolerance(relative=1e-6))
    differing = {
        comparison.key.partition(".")[0]
        for comparison in comparisons
        if comparison.verdict == DIFFERENT
    }
    assert differing == {"dt_float16", "dt_bfloat16", "special_keys", *DROPPED}


def test_pytorch_compares_with_mindspore(dump_path: Path) -> None:
    make_dump(dump_path)
    comparisons = compare_dumps(dump_path, GOLDEN / "ms_stat", Tolerance())
    shared = [comparison for comparison in comparisons if comparison.by != "missing"]
    # MindSpore takes the maximum of a NaN vector for infinity. It also takes the norm of a negative
    # number for negative, which is no difference.
    assert {comparison.key for comparison in shared if comparison.verdict == DIFFERENT} == {
        "nan.0.debug"
    }
    assert "nest_grad.0.debug.acts.1.0" in {comparison.key for comparison in shared}


@pytest.mark.parametrize("name", ["pt_stat", "pt_md5", "ms_stat"])
def test_msprobes_dumps_are_read_whole(name: str) -> None:
    dump = read_dump(GOLDEN / name)
    golden = json.loads((GOLDEN / name / "debug.json").read_bytes())
    assert dump.header["framework"] == golden["framework"]
    assert list(dump.data) == list(golden["data"])


def test_a_dump_of_msprobe_1_3_is_compared_with_ours(dump_path: Path, tmp_path: Path) -> None:
    """The golden file is what msprobe 1.3.0 wrote for these calls: keys without `.debug`, one
    folder for all steps.
    """
    theirs = tmp_path / "msprobe" / "rank"
    theirs.mkdir(parents=True)
    shutil.copy(GOLDEN / "pt_1.3.0.debug.json", theirs / "debug.json")
    debugger = PrecisionDebugger(dump_path=dump_path)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    for factor in (1, 2):
        debugger.save({"key1": x, "key2": [weight * factor, 3.5, "s"]}, "nest")
        debugger.save(x, "x")
        (x * x).sum().backward()
    debugger.close()
    compared = compare_dumps(theirs.parent, dump_path, Tolerance())
    assert Counter(comparison.verdict for comparison in compared) == {SAME: 14, NOT_COMPARED: 11}
    assert {comparison.key for comparison in compared if comparison.by == "missing"} == {
        "x_grad.0.pass1",
        *(f"nest_grad.0.pass1.{key}" for key in ("key1", "key2.0", "key2.1", "key2.2")),
    }
