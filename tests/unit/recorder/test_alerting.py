"""Who is told of events: functions, commands and webhooks given as `on_event`."""

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sonde.alerts.message import Alert
from sonde.errors import SettingError
from sonde.recorder.options import OnEvent, split_on_event
from sonde.recorder.recorder import Recorder


def train(folder: Path, on_event: OnEvent, *, rate: float = 0.01) -> None:
    """Train with a spike at step 70."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with Recorder(folder, model, optimizer, on_event=on_event) as recorder:

        def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            optimizer.zero_grad()
            loss = recorder.loss(F.mse_loss(model(batch[0]), batch[1]))
            loss.backward()
            optimizer.step()
            return loss

        for number in range(1, 80):
            x = torch.randn(8, 6)
            recorder.step(step, (x, x[:, :4] * (50 if number == 70 else 1)))


def told_by(folder: Path, kind: str, *, rate: float = 0.01) -> Alert:
    """Train, and return the first alert of a kind."""
    heard: list[Alert] = []
    train(folder, heard.append, rate=rate)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for alert in heard:
            if alert.kind == kind:
                return alert
        time.sleep(0.01)
    raise AssertionError(f"no {kind} among {heard}")


def test_a_function_is_told_of_an_event_with_its_step_and_path(tmp_path: Path) -> None:
    alert = told_by(tmp_path / "run", "spike")
    assert alert.step == 70
    assert alert.path.endswith("run")


def test_a_function_is_told_of_a_failure_without_a_jump(tmp_path: Path) -> None:
    alert = told_by(tmp_path / "run", "no_rate", rate=0.0)
    assert 16 <= alert.step <= 64


def test_a_function_that_raises_or_hangs_costs_nothing(tmp_path: Path) -> None:
    def hangs(alert: Alert) -> None:
        time.sleep(2 if alert.step == 70 else 0)
        raise RuntimeError("nobody listens")

    started = time.monotonic()
    train(tmp_path / "run", ["skip", hangs])
    assert time.monotonic() - started < 2


def test_a_reaction_and_targets_are_told_apart() -> None:
    reaction, targets = split_on_event(["stop", print, "https://example.com/hook", "echo it"])
    assert reaction == "stop"
    assert len(targets) == 3
    assert split_on_event(print)[0] == "record"


@pytest.mark.parametrize("given", ["skp", ["skip", "stop"], 7, ["record", None]])
def test_what_is_neither_a_reaction_nor_a_target_fails_at_once(given: OnEvent) -> None:
    with pytest.raises(SettingError):
        split_on_event(given)
