"""Watching a model: what is saved, and which module is named."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.errors import SettingError
from sonde.probe import PrecisionDebugger, watch
from sonde.probe.watching import NON_FINITE, OUTLYING, is_outlying, level_of
from sonde.records.reader import read_records
from sonde.spread import Spread

Start = Callable[..., PrecisionDebugger]
Saved = Callable[..., dict[str, Any]]


class Scale(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor, *, shift: torch.Tensor | None = None) -> torch.Tensor:
        return x * self.factor if shift is None else x * self.factor + shift


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Scale(2.0)
        self.halve = Scale(0.5)
        self.triple = Scale(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x, shift=torch.ones(1))
        return self.triple(self.halve(x))  # type: ignore[no-any-return]  # a module returns Any


def test_inputs_outputs_and_gradients_of_chosen_modules_are_saved(
    probe: Start, saved: Saved
) -> None:
    debugger = probe()
    model = Model()
    with watch(model, modules=["first", "halve", "trip*"]):
        model(torch.ones(2, requires_grad=True)).sum().backward()
        debugger.step()
    data = saved()
    assert list(data)[:4] == [
        "first.input.0.debug",
        "first.input_grad.0.debug",
        "first.output.0.debug",
        "first.output_grad.0.debug",
    ]
    assert data["first.input.0.debug"][1]["shift"]["Max"] == 1.0
    assert data["triple.output.0.debug"]["Max"] == 4.5
    assert data["halve.output_grad.0.debug"]["Max"] == 3.0
    assert data["first.input_grad.0.debug"][0]["Max"] == 3.0
    assert not [key for key in data if key.startswith("model")]


def test_without_a_choice_every_module_and_the_model_itself_are_watched(
    probe: Start, saved: Saved
) -> None:
    debugger = probe()
    model = Model()
    with watch(model):
        model(torch.ones(2))
    debugger.step()
    watched = {key.rsplit(".", 3)[0] for key in saved() if ".input.0." in key}
    assert watched == {"model", "first", "halve", "triple"}


def test_every_leaves_steps_out_and_closing_removes_the_hooks(probe: Start, tmp_path: Path) -> None:
    debugger = probe()
    model = Model()
    watching = watch(model, every=2)
    for _ in range(4):
        model(torch.ones(2))
        debugger.step()
    watching.close()
    model(torch.ones(2))
    debugger.step()
    assert sorted(path.name for path in (tmp_path / "dump").glob("step*")) == ["step0", "step2"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_module_that_produced_the_first_bad_value_is_named(
    probe: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = probe()
    model = Model()
    with watch(model) as watching, caplog.at_level(logging.WARNING, logger="sonde"):
        model(torch.ones(2))
        debugger.step()
        assert not watching.suspects
        model.halve.factor = float("inf")
        model(torch.ones(2))
        debugger.step()
    suspect = watching.first_suspect
    assert suspect is not None
    assert (suspect.step, suspect.module, suspect.where, suspect.kind) == (
        1,
        "halve",
        "output",
        NON_FINITE,
    )
    assert len(watching.suspects) == 1
    assert "the output of halve is non-finite" in caplog.text
    stream = list(read_records(tmp_path / "dump" / "step1" / "rank" / "probe.jsonl"))
    assert [record["module"] for record in stream if record["type"] == "SUSPECT"] == ["halve"]


def test_a_bad_value_that_came_in_is_not_blamed_on_the_module(probe: Start) -> None:
    debugger = probe()
    model = Model()
    with watch(model, modules=["halve", "triple"]) as watching:
        model(torch.tensor([float("nan")]))
        debugger.step()
    suspect = watching.first_suspect
    assert suspect is not None
    assert (suspect.module, suspect.where) == ("halve", "input")


def test_a_bad_gradient_is_named_in_the_order_of_the_backward_pass(probe: Start) -> None:
    debugger = probe()
    model = Model()
    with watch(model) as watching:
        output = model(torch.ones(2, requires_grad=True))
        (output * torch.tensor([1.0, float("nan")])).sum().backward()
        debugger.step()
    suspect = watching.first_suspect
    assert suspect is not None
    assert suspect.where == "gradient of output"


def test_a_value_far_from_its_own_past_is_outlying(probe: Start) -> None:
    debugger = probe()
    model = Model()
    generator = torch.Generator().manual_seed(0)
    with watch(model) as watching:
        for step in range(20):
            model.first.factor = 200.0 if step == 15 else 2.0
            model(torch.randn(64, generator=generator))
            debugger.step()
    assert [(suspect.step, suspect.module, suspect.kind) for suspect in watching.suspects] == [
        (15, "first", OUTLYING)
    ]
    assert "before" in watching.suspects[0].detail


def test_outlying_is_judged_by_the_median_and_needs_a_past() -> None:
    past = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 30.0]
    assert is_outlying(5.0, Spread(past))
    assert not is_outlying(1.3, Spread(past))
    assert not is_outlying(5.0, Spread(past[:7]))
    assert not is_outlying(1.9, Spread([1.0] * 8))
    assert is_outlying(2.1, Spread([1.0] * 8))


def test_the_level_of_a_tensor_does_not_depend_on_its_size() -> None:
    assert level_of({"Norm": 8.0, "shape": [4]}) == level_of({"Norm": 16.0, "shape": [4, 4]}) == 2.0
    assert level_of({"Norm": 0.0, "shape": [4]}) is level_of({"Norm": None, "shape": []}) is None


def test_records_that_no_watch_made_are_passed_over(probe: Start) -> None:
    debugger = probe()
    with watch(torch.nn.Linear(1, 1), modules=["model"]) as watched:
        debugger.save(torch.tensor([math.nan]), "x")
        debugger.save(torch.tensor([math.nan]), "other.output")
        debugger.step()
    assert watched.suspects == []


def test_a_pattern_that_matches_nothing_is_a_mistake(probe: Start) -> None:
    probe()
    with pytest.raises(
        SettingError, match=r"(?s)no module matches 'frist'.*did you mean 'first'"
    ) as caught:
        watch(Model(), modules=["frist"])
    assert "halve" in str(caught.value)


def test_watching_needs_a_probe_and_a_sensible_interval(probe: Start) -> None:
    with pytest.raises(SettingError, match="no PrecisionDebugger"):
        watch(Model())
    probe()
    with pytest.raises(SettingError, match="every is 0"):
        watch(Model(), every=0)
