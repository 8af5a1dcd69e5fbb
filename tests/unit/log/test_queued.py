import logging
import os
import threading
import time
from typing import Any

import pytest

from sonde.log import Logger, QueuedBackend
from sonde.log.backend import Record


class Tracker(QueuedBackend):
    """A tracker that can be held up and made to fail."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.go_on = threading.Event()
        self.go_on.set()
        self.sent: list[Record] = []
        self.events: list[str] = []
        self.error: Exception | None = None

    def send(self, record: Record) -> None:
        self.go_on.wait(20)
        if self.error is not None:
            raise self.error
        self.sent.append(record)

    def rest(self) -> None:
        self.events.append("rest")

    def finish(self) -> None:
        self.events.append("finish")


def test_a_slow_tracker_is_not_waited_for() -> None:
    tracker = Tracker()
    tracker.go_on.clear()
    logger = Logger([tracker])
    start = time.monotonic()
    for step in range(100):
        logger.log(step, {"loss": 1.0})
    assert time.monotonic() - start < 5
    assert tracker.sent == []
    tracker.go_on.set()
    logger.flush()
    assert [record["step"] for record in tracker.sent] == list(range(100))
    logger.close()
    assert tracker.num_lost == 0
    assert tracker.events[-1] == "finish"
    assert "rest" in tracker.events


def test_a_full_queue_drops_the_newest_counts_it_and_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.log.backend.QUEUE_RECORDS", 10)
    tracker = Tracker()
    tracker.go_on.clear()
    logger = Logger([tracker])
    logger.log(0, {"loss": 1.0})
    while tracker._queue.qsize():
        time.sleep(0.001)
    with caplog.at_level(logging.WARNING, "sonde"):
        for step in range(1, 31):
            logger.log(step, {"loss": 1.0})
    tracker.go_on.set()
    logger.close()
    assert [record["step"] for record in tracker.sent] == list(range(11))
    assert tracker.num_lost == logger.num_lost == 20
    (warning,) = caplog.records  # once, not for every record
    assert "Tracker loses records" in warning.getMessage()
    assert "queue of 10 records is full" in warning.getMessage()


def test_a_tracker_that_raises_is_counted_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker()
    tracker.error = ConnectionError("no network")
    logger = Logger([tracker])
    with caplog.at_level(logging.WARNING, "sonde"):
        logger.log(1, {"loss": 1.0})
        logger.log(2, {"loss": 1.0})
        logger.flush()
    assert tracker.num_lost == 2
    assert len(caplog.records) == 1
    tracker.error = None
    logger.log(3, {"loss": 1.0})
    logger.close()
    assert [record["step"] for record in tracker.sent] == [3]


def test_a_tracker_that_hangs_does_not_hold_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.log.backend.FLUSH_SECONDS", 0.05)
    tracker = Tracker()
    tracker.go_on.clear()
    logger = Logger([tracker])
    for step in range(3):
        logger.log(step, {"loss": 1.0})
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "sonde"):
        logger.close()
    assert time.monotonic() - start < 10
    assert tracker.num_lost >= 2
    assert "finish" not in tracker.events
    tracker.go_on.set()


def test_the_callers_dict_may_change_after_the_call() -> None:
    tracker = Tracker()
    tracker.go_on.clear()
    logger = Logger([tracker])
    data = {"loss": 1.0}
    step = [0, 1]
    logger.log(step, data)
    data["loss"] = 2.0
    step[1] = 9
    tracker.go_on.set()
    logger.close()
    assert tracker.sent[0]["data"] == {"loss": 1.0}
    assert tracker.sent[0]["step"] == [0, 1]


def test_what_comes_after_the_end_is_counted() -> None:
    tracker = Tracker()
    logger = Logger([tracker])
    logger.close()
    logger.log(1, {"loss": 1.0})
    assert tracker.num_lost == 1


def test_a_forked_child_leaves_the_parents_tracker_alone() -> None:
    tracker = Tracker()
    logger = Logger([tracker])
    logger.log(1, {"loss": 1.0})
    logger.flush()
    child = os.fork()
    if child == 0:
        logger.log(2, {"loss": 1.0})
        os._exit(tracker.num_lost)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    logger.close()
    assert [record["step"] for record in tracker.sent] == [1]
