import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde.log import JSONStreamBackend, Logger, Verbosity, read
from sonde.log.device import DELAY_SECONDS, MAX_WAITING, Copy


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on a device."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]  # a plain attribute of torch's
        return False


class Arrival:
    """The event of a copy that arrives when it is told to, or is waited for."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.num_waits = 0

    def query(self) -> bool:
        return self.arrived.is_set()

    def synchronize(self) -> None:
        self.num_waits += not self.arrived.is_set()


class Device:
    """Hands out copies and remembers them."""

    def __init__(self) -> None:
        self.copies: list[Arrival] = []

    def begin_copy(self, tensor: torch.Tensor) -> Copy:
        self.copies.append(Arrival())
        return Copy(tensor.as_subclass(torch.Tensor), self.copies[-1])


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def logger(tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> Logger:
    monkeypatch.setattr("sonde.log.device.begin_copy", device.begin_copy)
    backend = JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "log.jsonl")
    return Logger([backend])


def on_device(number: float) -> torch.Tensor:
    return torch.tensor(number).as_subclass(DeviceTensor)


def written(logger: Logger) -> list[tuple[Any, Any]]:
    path = logger.backends[0].path  # type: ignore[attr-defined]  # narrower here than its type says
    return [(record.step, record.data) for record in read(path, keep_superseded=True)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def test_log_does_not_wait_for_the_device(logger: Logger, device: Device) -> None:
    logger.log(1, {"loss": on_device(0.5)})
    assert device.copies[0].num_waits == 0
    assert written(logger) == []
    logger.close()
    assert written(logger) == [(1, {"loss": 0.5})]


def test_records_behind_a_waiting_one_keep_their_order(logger: Logger, device: Device) -> None:
    logger.log(1, {"loss": 1.0})
    logger.log(2, {"loss": on_device(2.0)})
    logger.log(3, {"loss": 3.0})
    logger.info("four")
    logger.log(5, {"loss": on_device(5.0), "list": [on_device(6.0)]})
    assert written(logger) == [(1, {"loss": 1.0})]
    logger.flush()
    expected = [(1, {"loss": 1.0}), (2, {"loss": 2.0}), (3, {"loss": 3.0}), (None, "four")]
    assert written(logger) == [*expected, (5, {"loss": 5.0, "list": [6.0]})]
    logger.close()


def test_the_next_log_writes_what_has_arrived(logger: Logger, device: Device) -> None:
    logger.log(1, {"loss": on_device(1.0)})
    logger.log(2, {"loss": on_device(2.0)})
    device.copies[0].arrived.set()
    logger.log(3, {"loss": 3.0})
    assert [step for step, _ in written(logger)] == [1]
    device.copies[1].arrived.set()
    logger.log(4, {"loss": 4.0})
    assert [step for step, _ in written(logger)] == [1, 2, 3, 4]
    assert [copy.num_waits for copy in device.copies] == [0, 0]
    logger.close()


def test_a_short_delay_writes_what_has_arrived_without_another_call(
    logger: Logger, device: Device
) -> None:
    logger.log(1, {"loss": on_device(1.0)})
    device.copies[0].arrived.set()
    wait_until(lambda: written(logger) == [(1, {"loss": 1.0})])
    assert DELAY_SECONDS <= 0.1
    logger.log(2, {"loss": on_device(2.0)})  # and again, after the thread has ended
    device.copies[1].arrived.set()
    wait_until(lambda: len(written(logger)) == 2)
    logger.close()


def test_times_are_those_of_the_call_not_of_the_arrival(logger: Logger, tmp_path: Path) -> None:
    before = time.time()
    logger.log(1, {"loss": on_device(1.0)})
    after = time.time()
    time.sleep(0.05)
    logger.close()
    (record,) = read(tmp_path / "log.jsonl")
    assert record.timestamp is not None
    assert before - 1e-5 <= record.timestamp <= after


def test_a_line_that_grows_too_long_waits_for_the_device(logger: Logger, device: Device) -> None:
    for step in range(MAX_WAITING + 5):
        logger.log(step, {"loss": on_device(1.0)})
    assert len(written(logger)) == 5
    assert sum(copy.num_waits for copy in device.copies) == 5
    logger.close()
    assert len(written(logger)) == MAX_WAITING + 5


def test_a_device_step_is_resolved_too(logger: Logger) -> None:
    logger.log(on_device(3), {"loss": on_device(1.0)})
    logger.close()
    assert written(logger) == [(3.0, {"loss": 1.0})]


def test_a_forked_child_does_not_write_what_its_parent_will(logger: Logger, tmp_path: Path) -> None:
    logger.log(1, {"loss": on_device(1.0)})
    child = os.fork()
    if child == 0:
        try:
            logger.log(2, {"loss": 2.0})
            logger.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    logger.close()
    assert written(logger) == [(2, {"loss": 2.0}), (1, {"loss": 1.0})]
