"""PrecisionDebugger: the manual as written, and never in the way."""

import json
import logging
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.errors import SettingError
from sonde.probe import PrecisionDebugger, step_dump
from sonde.probe.dump import read_dump

Start = Callable[..., PrecisionDebugger]
Saved = Callable[..., dict[str, Any]]


def test_the_manuals_first_example_works_with_a_config_file(tmp_path: Path, probe: Start) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"task": "statistics", "level": "debug", "dump_path": str(tmp_path / "out"), "rank": []}
        )
    )
    debugger = PrecisionDebugger(str(config))
    PrecisionDebugger.save({"key1": "value1", "key2": [1, 2]}, "dict_variable", save_backward=False)
    debugger.start()
    debugger.stop()
    debugger.step()
    document = json.loads((tmp_path / "out" / "step0" / "rank" / "debug.json").read_bytes())
    assert list(document) == ["task", "level", "framework", "dump_data_dir", "data"]
    assert document["data"]["dict_variable.0.debug"]["key2"][1] == {"type": "int", "value": 2}


def test_equal_settings_give_the_same_object_and_others_an_error(probe: Start) -> None:
    debugger = probe()
    assert probe() is debugger
    with pytest.raises(SettingError, match="other settings"):
        probe(task="tensor")
    debugger.close()
    assert probe(task="tensor") is not debugger


def test_save_before_construction_says_so() -> None:
    with pytest.raises(SettingError, match="no PrecisionDebugger"):
        PrecisionDebugger.save(1, "x")


def test_a_name_that_is_no_string_is_a_bad_argument(probe: Start) -> None:
    probe()
    with pytest.raises(SettingError, match="the name of a saved value is 3"):
        PrecisionDebugger.save(1, 3)  # type: ignore[arg-type]  # wrong on purpose


def test_a_dump_path_that_cannot_be_made_fails_at_construction(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot create dump_path"):
        PrecisionDebugger(dump_path=tmp_path / "file" / "dump")


def test_calls_are_counted_per_name_and_step(probe: Start, saved: Saved) -> None:
    debugger = probe()
    for _ in range(2):
        for name in ("a", "a", "b"):
            debugger.save(1, name, save_backward=False)
        debugger.step()
    expected = ["a.0.debug", "a.1.debug", "b.0.debug"]
    assert list(saved(0)) == list(saved(1)) == expected


def test_the_step_filter_leaves_steps_out(probe: Start, tmp_path: Path) -> None:
    debugger = probe(step=[1, "3-4"])
    for _ in range(6):
        debugger.save(1, "x")
        debugger.step()
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == [
        "step1",
        "step3",
        "step4",
    ]


def test_the_rank_filter_knows_ranks_from_the_environment(
    probe: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    debugger = probe(rank=[0, 1])
    debugger.save(1, "x")
    debugger.close()
    assert not list((tmp_path / "dump").glob("step*"))
    debugger = probe(rank=["2-3"])
    debugger.save(1, "x")
    debugger.close()
    assert (tmp_path / "dump" / "step0" / "rank3" / "debug.json").exists()


def test_training_with_the_probe_is_bitwise_equal_to_training_without(probe: Start) -> None:
    debugger = probe(summary_mode="md5")

    def train(save: Callable[[Any, str], None]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 4)
        )
        for _ in range(5):
            inputs = torch.randn(4, 8)
            hidden = model[:3](inputs)
            save({"hidden": hidden, "inputs": (inputs, None)}, "values")
            save(list(model.parameters()), "parameters")
            loss = model[3](hidden).square().mean()
            save(loss, "loss")
            model.zero_grad()
            loss.backward()
            with torch.no_grad():  # by hand: torch.optim takes seconds to import
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
            debugger.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = train(lambda *_: None)
    probed = train(debugger.save)
    assert all(torch.equal(a, b) for a, b in zip(plain, probed, strict=True))


def test_the_value_saved_is_the_value_at_the_call(
    probe: Start, saved: Saved, tmp_path: Path
) -> None:
    debugger = probe(task="tensor")
    value = torch.full((1000,), 5.0)
    debugger.save(value, "x")
    value.mul_(0)
    debugger.step()
    assert saved()["x.0.debug"]["Max"] == 5.0
    dump = read_dump(tmp_path / "dump" / "step0" / "rank")
    assert dump.load(saved()["x.0.debug"]).max() == 5.0


def test_gradients_keep_the_shape_of_the_saved_value(probe: Start, saved: Saved) -> None:
    debugger = probe()
    a = torch.ones(2, requires_grad=True)
    b = torch.ones(2)
    debugger.save({"a": a, "l": [b, a * 2], "s": "text"}, "x")
    (a * 3).sum().backward()
    debugger.step()
    grad = saved()["x_grad.0.debug"]
    assert grad["a"]["Max"] == 3.0
    assert grad["l"] == [None, None]
    assert grad["s"] is None


def test_save_backward_false_registers_nothing(probe: Start, saved: Saved) -> None:
    debugger = probe()
    value = torch.ones(2, requires_grad=True)
    debugger.save(value, "x", save_backward=False)
    assert not value._backward_hooks
    value.sum().backward()
    debugger.step()
    assert list(saved()) == ["x.0.debug"]


def test_two_losses_through_one_value_are_two_passes(probe: Start, saved: Saved) -> None:
    debugger = probe()
    value = torch.ones(2, requires_grad=True) * 1
    other = torch.ones(2, requires_grad=True)
    debugger.save([value, other], "x")
    (value * 2).sum().backward(retain_graph=True)
    (value * 3 + other * 4).sum().backward()
    debugger.step()
    assert [saved()["x_grad.0.debug"][0]["Max"], saved()["x_grad.0.debug"][1]] == [2.0, None]
    assert [leaf["Max"] for leaf in saved()["x_grad.0.debug.pass1"]] == [3.0, 4.0]


def test_mixed_precision_training_is_recorded_as_it_is(probe: Start, saved: Saved) -> None:
    debugger = probe()
    model = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model(torch.ones(2, 4))
        debugger.save(hidden, "hidden")
        loss = hidden.float().sum()
    (loss * 1024.0).backward()
    debugger.step()
    assert saved()["hidden.0.debug"]["dtype"] == "torch.bfloat16"
    assert saved()["hidden_grad.0.debug"]["Max"] == 1024.0


@pytest.mark.slow  # torch.func imports the compiler
def test_values_inside_vmap_and_grad_transforms_stop_nothing(probe: Start, saved: Saved) -> None:
    debugger = probe()

    def function(x: torch.Tensor) -> torch.Tensor:
        PrecisionDebugger.save(x, "x")
        return (x * x).sum()

    assert torch.func.vmap(function)(torch.ones(3, 2)).tolist() == [2.0, 2.0, 2.0]
    assert torch.func.grad(function)(torch.ones(2)).tolist() == [2.0, 2.0]
    debugger.step()
    assert {"x.0.debug", "x.1.debug"} <= saved().keys()


def test_a_save_during_backward_that_is_no_recompute_is_counted(probe: Start, saved: Saved) -> None:
    debugger = probe()
    value = torch.ones(2, requires_grad=True)
    value.register_hook(
        lambda gradient: PrecisionDebugger.save(gradient, "seen", save_backward=False)
    )
    for factor in (2, 3):
        (value * factor).sum().backward()
    debugger.step()
    assert [saved()[f"seen.{count}.debug"]["Max"] for count in (0, 1)] == [2.0, 3.0]


def test_threads_lose_nothing(probe: Start, saved: Saved) -> None:
    debugger = probe()

    def work() -> None:
        for _ in range(200):
            debugger.save(torch.ones(10), "x", save_backward=False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    debugger.step()
    assert sorted(saved()) == sorted(f"x.{count}.debug" for count in range(800))


def test_memory_is_bounded_and_nothing_is_lost(
    probe: Start, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_dump, "KEEP_RECORDS", 300)
    debugger = probe()
    for number in range(1000):
        debugger.save({"number": number, "nan": torch.tensor(math.nan)}, "x", save_backward=False)
    assert debugger._steps[-1]._kept is None
    debugger.step()
    data = saved()
    assert [data[f"x.{number}.debug"]["number"]["value"] for number in range(1000)] == list(
        range(1000)
    )
    assert math.isnan(data["x.7.debug"]["nan"]["Max"])


def test_a_step_without_end_forgets_the_hooks_of_graphs_that_are_gone(
    probe: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.probe.debugger._MAX_HOOKS", 50)
    debugger = probe()
    weight = torch.ones(2, requires_grad=True)
    for _ in range(500):
        hidden = weight * 2
        debugger.save(hidden, "hidden")
        hidden.sum().backward()
    assert len(debugger._steps[-1].hooks) <= 51


def test_a_disk_that_fails_is_reported_once_and_stops_nothing(
    probe: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = probe(task="tensor")
    (tmp_path / "dump" / "step0").write_text("in the way")
    with caplog.at_level(logging.WARNING, logger="sonde"):
        for _ in range(300):
            debugger.save(torch.ones(2), "x")
        debugger.step()
    assert len([record for record in caplog.records if "Training goes on" in record.message]) == 1


def test_a_probe_that_fails_inside_is_reported_and_stops_nothing(
    probe: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = probe()

    def broken(variable: object, name: str, save_backward: bool) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(debugger, "_record", broken)
    with caplog.at_level(logging.WARNING, logger="sonde"):
        PrecisionDebugger.save(1, "x")
    assert "a bug of ours" in caplog.text


def test_a_second_run_in_the_same_place_replaces_the_first(
    probe: Start, saved: Saved, tmp_path: Path
) -> None:
    debugger = probe(task="tensor")
    debugger.save([torch.ones(1)] * 3, "old", save_backward=False)
    debugger.close()
    debugger = probe(task="tensor")
    debugger.save(torch.ones(1), "new", save_backward=False)
    debugger.close()
    assert list(saved()) == ["new.0.debug"]
    assert [path.name for path in tmp_path.rglob("*.pt")] == ["new.0.tensor.pt"]


def test_a_closed_probe_has_no_hooks_left(probe: Start) -> None:
    debugger = probe()
    weight = torch.nn.Parameter(torch.ones(2))
    debugger.save(weight, "w")
    debugger.close()
    assert not weight._backward_hooks


def test_dtensors_say_how_they_are_laid_out(probe: Start, saved: Saved) -> None:
    class Laid(torch.Tensor):
        placements = ("Shard(0)",)
        device_mesh = type("Mesh", (), {"mesh": torch.tensor([0, 1])})()

        def to_local(self) -> torch.Tensor:
            return torch.ones(1, 2)

    debugger = probe()
    debugger.save(torch.ones(2, 2).as_subclass(Laid), "laid", save_backward=False)
    debugger.step()

    leaf = saved()["laid.0.debug"]
    assert (leaf["device_mesh"], leaf["placements"]) == ([0, 1], ["'Shard(0)'"])
    assert leaf["local_shape"] == [1, 2]


@pytest.mark.slow
def test_importing_the_probe_imports_no_framework() -> None:
    code = (
        "import sys, sonde.probe, sonde.probe.compare, sonde.probe.dump; print('torch' in"
        " sys.modules, 'mindspore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_saved_values_are_not_kept_alive(probe: Start) -> None:
    import gc
    import weakref

    debugger = probe()
    value = torch.ones(1000)
    reference = weakref.ref(value)
    debugger.save({"x": [value]}, "x")
    del value
    gc.collect()
    assert reference() is None


def test_everything_can_be_called_on_the_class_as_in_msprobe(probe: Start, saved: Saved) -> None:
    probe(model=torch.nn.Linear(1, 1), task="statistics")
    PrecisionDebugger.set_init_step(7)
    PrecisionDebugger.start(model=torch.nn.Linear(1, 1))
    PrecisionDebugger.save(torch.ones(2), "x", save_backward=False)
    PrecisionDebugger.stop()
    PrecisionDebugger.forward_backward_dump_end()
    PrecisionDebugger.step()
    PrecisionDebugger.start(torch.nn.Linear(1, 1), token_range=None, rank_id=None)
    PrecisionDebugger.save({"a": torch.Tensor([1.0, 2.0])}, "data_dict", save_backward=False)
    PrecisionDebugger.step()
    assert list(saved(step=7)) == ["x.0.debug"]
    leaf = saved(step=8)["data_dict.0.debug"]["a"]
    assert (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) == (
        2.0,
        1.0,
        1.5,
        2.2360680103302,
    )


@pytest.mark.parametrize("step", [-1, 1.0, "3", True])
def test_a_first_step_that_is_no_number_is_refused(probe: Start, step: Any) -> None:
    probe()
    with pytest.raises(SettingError, match="use a whole number, 0 or more"):
        PrecisionDebugger.set_init_step(step)


def test_calls_on_the_class_need_a_probe() -> None:
    for call in (PrecisionDebugger.start, PrecisionDebugger.stop, PrecisionDebugger.step):
        with pytest.raises(SettingError, match="no PrecisionDebugger"):
            call()


def test_records_wait_for_one_another_but_not_long(
    tmp_path: Path, probe: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("sonde.probe.step_dump.time.monotonic", lambda: clock[0])
    debugger = probe()
    PrecisionDebugger.save(torch.ones(2), "first", save_backward=False)
    assert list(tmp_path.rglob("probe.jsonl")) == []
    clock[0] += step_dump.FLUSH_SECONDS + 0.01
    PrecisionDebugger.save(torch.ones(2), "second", save_backward=False)
    (stream,) = tmp_path.rglob("probe.jsonl")
    assert stream.read_bytes().count(b"first") == 1
    debugger.close()
