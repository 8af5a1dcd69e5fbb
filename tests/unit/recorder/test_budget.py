"""The size of a state is known before it is written, and what is told at the start is true."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorder_loops import Model, Training
from torch import nn

from sonde.recorder.budget import plan_states, size_of_state
from sonde.recorder.options import RecorderOptions

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters()),
    "Adam with amsgrad": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "SGD with momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_size_of_a_state_is_known_before_the_first_step(name: str) -> None:
    model = nn.Sequential(nn.Linear(300, 100), nn.Linear(100, 100))
    model[1].weight = nn.Parameter(torch.zeros(100, 100, dtype=torch.bfloat16))
    optimizer = OPTIMIZERS[name](model)
    before = size_of_state([model.state_dict(), optimizer.state_dict()], optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = size_of_state([model.state_dict(), optimizer.state_dict()], optimizer)
    assert before == pytest.approx(after, abs=64)  # the step counts


def test_weights_that_are_tied_count_once() -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    once = size_of_state(model.state_dict(), optimizer)
    assert size_of_state([model.state_dict(), model.state_dict()], optimizer) == once


def test_as_many_states_are_kept_as_the_budget_allows() -> None:
    options = RecorderOptions(keep_states=3, max_bytes=100)
    assert plan_states(101, options).num_states == 0
    assert plan_states(60, options).num_states == 1
    assert plan_states(30, options).num_states == 2  # and a third while it is written
    assert plan_states(10, options).num_states == 3


def test_a_state_beyond_the_budget_is_never_written_and_the_way_to_replay_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sonde")
    options = RecorderOptions(max_bytes=60_000, state_every=5)
    Training(tmp_path / "run", settings=options).train(12)
    assert not list((tmp_path / "run" / "flight").rglob("step-*"))
    (opening,) = [text for text in caplog.messages if text.startswith("sonde: recording")]
    assert "no states are kept" in opening
    assert f"sonde replay {tmp_path / 'run'} --step N -- " in opening


def test_the_opening_says_size_number_and_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sonde")
    options = RecorderOptions(state_every=4, keep_states=2)
    Training(tmp_path / "run", settings=options).train(3)
    (opening,) = [text for text in caplog.messages if text.startswith("sonde: recording")]
    assert "76 kB every 4 steps" in opening
    assert "8 steps" in opening
