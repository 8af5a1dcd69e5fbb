"""Every bug and limit of msprobe that was reproduced, by its number and name, and what happens here
instead.

Bugs 1, 14 and 17 need several processes: tests/integration/test_probe_processes.py.
"""

import json
import logging
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from sonde.errors import SettingError
from sonde.probe import PrecisionDebugger
from sonde.probe.dump import read_dump

Start = Callable[..., PrecisionDebugger]
Saved = Callable[..., dict[str, Any]]


def test_bug_02_no_setting_turns_mean_and_norm_into_null(probe: Start, saved: Saved) -> None:
    debugger = probe()
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.uint8,
    ):
        debugger.save(torch.tensor([3, 4]).to(dtype), str(dtype))
    debugger.step()
    leaves = saved().values()
    assert [leaf["Mean"] for leaf in leaves if leaf] == [3.5] * 7
    assert [leaf["Norm"] for leaf in leaves if leaf] == [5.0] * 7


def test_bug_03_an_fp8_tensor_keeps_its_storage_in_tensor_mode(
    probe: Start, saved: Saved, tmp_path: Path
) -> None:
    debugger = probe(task="tensor")
    value = torch.tensor([1.0, -2.0, 0.0]).to(torch.float8_e4m3fn)
    debugger.save(value, "x")
    debugger.step()
    assert value.to(torch.float32).tolist() == [1.0, -2.0, 0.0]
    assert (saved()["x.0.debug"]["Max"], saved()["x.0.debug"]["Min"]) == (1.0, -2.0)
    path = tmp_path / "dump" / "step0" / "rank" / "dump_tensor_data" / "x.0.tensor.pt"
    assert torch.load(path, weights_only=True).dtype is torch.float8_e4m3fn


def test_bug_04_the_hash_is_that_of_the_value_at_the_call(probe: Start, saved: Saved) -> None:
    debugger = probe(summary_mode="md5")
    value = torch.randn(1 << 20)
    expected = f"{zlib.crc32(value.numpy().data):08x}"
    debugger.save(value, "x")
    value.zero_()
    debugger.step()
    assert saved()["x.0.debug"]["md5"] == expected
    assert saved()["x.0.debug"]["Max"] > 0


def test_bug_05_norms_neither_overflow_nor_drift(probe: Start, saved: Saved) -> None:
    debugger = probe()
    debugger.save(torch.full((1_000_000,), 100.0, dtype=torch.float16), "half")
    value = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
    debugger.save(value, "single")
    debugger.save(torch.tensor([1.0, 0.0, 3.0, 2.0]).bfloat16(), "brain")
    debugger.step()
    assert saved()["half.0.debug"]["Norm"] == 1e5
    exact = math.sqrt(math.fsum(number * number for number in value.double().tolist()))
    assert saved()["single.0.debug"]["Norm"] == float(np.float32(exact))
    assert saved()["brain.0.debug"]["Norm"] == float(np.float32(math.sqrt(14)))


def test_bug_06_hooks_on_a_parameter_do_not_pile_up(probe: Start, saved: Saved) -> None:
    debugger = probe()
    weight = torch.nn.Parameter(torch.ones(10))
    for _ in range(20):
        debugger.save(weight, "weight")
        weight.sum().backward()
        debugger.step()
        assert not weight._backward_hooks
    assert all(list(saved(step)) == ["weight.0.debug", "weight_grad.0.debug"] for step in range(20))


def test_bug_06_a_hook_whose_gradient_never_comes_is_removed_a_step_later(probe: Start) -> None:
    debugger = probe()
    weight = torch.nn.Parameter(torch.ones(10))
    debugger.save(weight, "weight")
    debugger.step()
    assert len(weight._backward_hooks or {}) == 1
    debugger.step()
    assert not weight._backward_hooks


def test_bug_07_every_backward_pass_has_its_own_gradient(probe: Start, saved: Saved) -> None:
    debugger = probe()
    value = torch.ones(2, requires_grad=True)
    debugger.save({"x": value}, "x")
    (value * 10).sum().backward()
    (value * 1).sum().backward()
    debugger.step()
    assert saved()["x_grad.0.debug"]["x"]["Max"] == 10.0
    assert saved()["x_grad.0.debug.pass1"]["x"]["Max"] == 1.0


def test_bug_07_a_gradient_after_step_still_reaches_its_step(probe: Start, saved: Saved) -> None:
    debugger = probe()
    value = torch.ones(2, requires_grad=True)
    debugger.save(value, "x")
    debugger.step()
    assert saved()["x_grad.0.debug"] is None
    (value * 3).sum().backward()
    debugger.step()
    assert saved()["x_grad.0.debug"]["Max"] == 3.0


@pytest.mark.slow  # checkpointing imports the compiler
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_bug_08_checkpointing_counts_no_call_twice(
    probe: Start, saved: Saved, use_reentrant: bool
) -> None:
    debugger = probe()
    value = torch.ones(3, requires_grad=True)

    def layer(number: float, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs * number
        debugger.save(hidden, "hidden")
        return hidden.sin()

    for number in (2.0, 3.0):
        value_out = checkpoint(layer, number, value, use_reentrant=use_reentrant)
        assert isinstance(value_out, torch.Tensor)
        value = value_out
    value.sum().backward()
    debugger.step()
    data = saved()
    assert [key for key in data if key.startswith("hidden.") and "recompute" not in key] == [
        "hidden.0.debug",
        "hidden.1.debug",
    ]
    assert {"hidden.0.debug.recompute", "hidden.1.debug.recompute"} <= data.keys()
    # d(sin(3 sin(2x)))/d(2x) at the first layer, d/d(3y) at the second: each at the call it belongs
    # to.
    second = math.cos(3 * math.sin(2))
    assert data["hidden_grad.1.debug"]["Max"] == pytest.approx(second, rel=1e-5)
    assert data["hidden_grad.0.debug"]["Max"] == pytest.approx(3 * second * math.cos(2), rel=1e-5)
    if use_reentrant:  # its recomputed calls are matched with the first ones
        assert data["hidden.1.debug.recompute"]["Max"] == data["hidden.1.debug"]["Max"]
    assert not [key for key in data if key.startswith("hidden_grad") and data[key] is None]


@pytest.mark.slow
# any graph break makes torch warn itself
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_bug_09_save_inside_a_compiled_function_breaks_the_graph_and_nothing_else(
    probe: Start, saved: Saved
) -> None:
    debugger = probe()

    @torch.compile(backend="eager")
    def layer(inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs * 2
        PrecisionDebugger.save(hidden, "hidden")
        return hidden + 1

    value = torch.ones(2, requires_grad=True)
    output = layer(value)
    output.sum().backward()
    debugger.step()
    assert output.tolist() == [3.0, 3.0]
    assert saved()["hidden.0.debug"]["Max"] == 2.0
    assert saved()["hidden_grad.0.debug"]["Max"] == 1.0


@pytest.mark.parametrize(
    "name", ["a/b", "../esc", "/abs", "..", "with space", "名字", "x" * 300, "a\0b", "", "\ud800"]
)
def test_bug_10_no_name_escapes_or_stops_training(probe: Start, tmp_path: Path, name: str) -> None:
    debugger = probe(task="tensor")
    debugger.save({"k": torch.ones(2)}, name)
    debugger.step()
    rank = tmp_path / "dump" / "step0" / "rank"
    written = {path.parent for path in tmp_path.rglob("*.pt")}
    assert written == {rank / "dump_tensor_data"}
    dump = read_dump(rank)
    leaf = dump.leaves()[f"{name}.0.debug", "k"]
    assert leaf is not None
    assert dump.load(leaf).tolist() == [1.0, 1.0]


def test_bug_11_a_value_named_like_a_gradient_collides_with_nothing(
    probe: Start, saved: Saved
) -> None:
    debugger = probe(task="tensor")
    value = torch.ones(2, requires_grad=True)
    debugger.save(value, "y")
    debugger.save(torch.full((2,), 7.0), "y_grad", save_backward=False)
    (value * 5).sum().backward()
    debugger.step()
    data = saved()
    assert data["y_grad.0.debug"]["Max"] == 5.0
    assert data["y_grad~.0.debug"]["Max"] == 7.0
    assert data["y_grad.0.debug"]["data_name"] != data["y_grad~.0.debug"]["data_name"]


def test_bug_11_dotted_keys_have_files_of_their_own(probe: Start, tmp_path: Path) -> None:
    debugger = probe(task="tensor")
    debugger.save({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, "x")
    debugger.save(torch.full((1,), 2.0), "x.0.tensor")
    debugger.save({"0": {"tensor": torch.full((1,), 3.0)}}, "x")
    debugger.step()
    dump = read_dump(tmp_path / "dump" / "step0" / "rank")
    values = [dump.load(leaf).tolist() for leaf in dump.leaves().values() if leaf]
    assert values == [[0.0], [1.0], [2.0], [3.0]]


def test_bug_12_keys_such_as_dtype_and_type_are_ordinary(probe: Start, saved: Saved) -> None:
    debugger = probe()
    debugger.save(
        {"dtype": torch.ones(2), "device": torch.zeros(2), "type": "int", "value": 3}, "x", False
    )
    debugger.step()
    assert saved()["x.0.debug"]["dtype"]["Max"] == 1.0
    assert saved()["x.0.debug"]["device"]["Max"] == 0.0
    assert saved()["x.0.debug"]["type"] == {"type": "str", "value": "int"}


def test_bug_13_none_and_arrays_drop_nothing(probe: Start, saved: Saved) -> None:
    debugger = probe()
    debugger.save({"a": torch.ones(2), "n": None, "np": np.full(2, 4.0)}, "x", save_backward=False)
    debugger.step()
    tree = saved()["x.0.debug"]
    assert (tree["a"]["Max"], tree["n"], tree["np"]["Max"]) == (
        1.0,
        {"type": "NoneType", "value": None},
        4.0,
    )


def test_bug_15_one_processor_is_enough(
    probe: Start, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    debugger = probe(summary_mode="md5")
    debugger.save(torch.ones(2), "x")
    debugger.step()
    assert saved()["x.0.debug"]["md5"]


def test_bug_16_a_task_that_would_save_nothing_is_refused(
    tmp_path: Path, probe: Start, saved: Saved
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "acc_check", "dump_path": str(tmp_path / "dump")}))
    with pytest.raises(SettingError, match="task is 'acc_check'"):
        PrecisionDebugger(config)
    debugger = PrecisionDebugger(config, task="statistics")
    debugger.save(torch.ones(2), "x")
    debugger.step()
    assert saved()["x.0.debug"]["Max"] == 1.0


def test_bug_18_sparse_and_conjugate_tensors_are_described(probe: Start, saved: Saved) -> None:
    debugger = probe()
    debugger.save(torch.tensor([[0.0, 2.0], [0.0, -3.0]]).to_sparse(), "sparse")
    debugger.save(torch.tensor([3 + 4j]).conj(), "conj")
    debugger.step()
    sparse = saved()["sparse.0.debug"]
    assert (sparse["Max"], sparse["Min"], sparse["Mean"], sparse["num_zero"]) == (
        2.0,
        -3.0,
        -0.25,
        2,
    )
    assert saved()["conj.0.debug"]["Max"] == 5.0


def test_bug_18_deep_and_cyclic_values_end(probe: Start, saved: Saved) -> None:
    debugger = probe()
    deep: list[Any] = [torch.ones(1)]
    for _ in range(500):
        deep = [deep]
    cyclic: list[Any] = [torch.ones(1)]
    cyclic.append(cyclic)
    debugger.save(deep, "deep")
    debugger.save(cyclic, "cyclic")
    debugger.step()
    assert "deeper than" in json.dumps(saved()["deep.0.debug"])
    assert saved()["cyclic.0.debug"][0]["Max"] == 1.0
    assert "cycle" in saved()["cyclic.0.debug"][1]["error"]


def test_bug_19_without_step_records_reach_the_disk_all_the_same(
    probe: Start, tmp_path: Path
) -> None:
    debugger = probe()
    for _ in range(300):
        debugger.save(torch.ones(1), "x", save_backward=False)
    assert len(read_dump(tmp_path / "dump" / "step0" / "rank").data) >= 256


def test_bug_22_two_runs_have_the_same_paths(
    probe: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = []
    for name in ("a", "b"):
        debugger = probe(dump_path=tmp_path / name, task="tensor")
        with caplog.at_level(logging.WARNING):
            debugger.save(torch.ones(2), "x")
        debugger.close()
        paths.append(
            sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        )
    assert paths[0] == paths[1]
    assert "step0/rank/dump_tensor_data/x.0.tensor.pt" in paths[0]
    assert not caplog.records
