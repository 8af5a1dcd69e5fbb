"""What a signal handler of the script raises reaches the script, also out of the recorder."""

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sonde
from sonde.recorder.guard import is_from_a_signal

SPIKE = 70


@pytest.fixture(autouse=True)
def _handler_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def leave(*_: Any) -> None:
    sys.exit(143)


class Leaves:
    """A handler that is an object."""

    def __call__(self, *_: Any) -> None:
        leave()

    def handle(self, *_: Any) -> None:
        leave()


@pytest.mark.parametrize(
    "handler",
    [leave, lambda *_: leave(), Leaves(), Leaves().handle, functools.partial(leave, 1)],
    ids=["function", "lambda", "object", "method", "partial"],
)
def test_the_error_of_any_handler_is_known(handler: Callable[..., Any]) -> None:
    signal.signal(signal.SIGTERM, handler)
    with pytest.raises(SystemExit) as raised:
        os.kill(os.getpid(), signal.SIGTERM)
    assert is_from_a_signal(raised.value)


def test_another_error_is_none_of_a_handler() -> None:
    with pytest.raises(SystemExit) as raised:
        sys.exit(1)
    assert not is_from_a_signal(raised.value)


def test_a_script_that_ends_by_a_signal_ends_during_a_look_at_a_scene(tmp_path: Path) -> None:
    signal.signal(signal.SIGTERM, leave)
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = sonde.Recorder(tmp_path / "run", model, optimizer)

    def train_step(batch: Tensor) -> None:
        if recorder.is_repeating:
            os.kill(os.getpid(), signal.SIGTERM)
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(1, SPIKE):
        recorder.step(train_step, torch.randn(6, 8))
    with pytest.raises(SystemExit):
        recorder.step(train_step, 60 * torch.randn(6, 8))
    assert recorder.num_updates == SPIKE - 1
    recorder.close()
