"""`Alerts`: a queue and a daemon thread that delivers from it.

Sending costs 3 µs and never blocks: if the queue is full, the alert is dropped and counted. At the
end of the process, what is queued gets `exit_seconds` at most; a target that does not answer in
that time is left behind. A forked child (a data worker) sends nothing.
"""

import atexit
import logging
import os
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from sonde.alerts.message import Alert
from sonde.alerts.targets import Target, TargetLike, target_of
from sonde.alerts.trackers import open_mlflow_run
from sonde.errors import SettingError

_MAX_QUEUED: Final = 64
_MAX_FAILURES: Final = 5
"""A target that fails this often in a row is given up."""
_HOUR: Final = 3600.0

_logger = logging.getLogger("sonde")


@dataclass(slots=True)
class _State:
    """How a target has done so far."""

    target: Target
    num_failures: int = 0
    is_given_up: bool = False


class Alerts:
    """Sends alerts to targets: URLs, commands or functions.

    ```python
    from sonde.alerts import Alert, Alerts

    received = []
    alerts = Alerts(received.append, max_per_hour=6)
    alerts.send(Alert(step=300, kind="spike", title="The loss jumped.", path="runs/mine"))
    alerts.wait(5)
    assert received[0].step == 300
    ```
    """

    def __init__(
        self, *targets: TargetLike, max_per_hour: int = 12, exit_seconds: float = 1.0
    ) -> None:
        """Prepare to send.

        Args:
            targets: Webhooks, commands or functions; each gets every alert.
            max_per_hour: Send at most so many in any hour; the others are counted.
            exit_seconds: How long the process may wait for queued alerts when it ends.
        """
        if not targets:
            raise SettingError(
                "alerts have nowhere to go", hint="give a URL, a command or a function"
            )
        if max_per_hour < 1:
            raise SettingError(f"max_per_hour is 1 or more, not {max_per_hour}")
        self._states = [_State(target_of(target)) for target in targets]
        self._max_per_hour = max_per_hour
        self._sent: deque[float] = deque()
        self._num_held_back = 0
        self._queue: queue.Queue[Alert] = queue.Queue(_MAX_QUEUED)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._exit_seconds = exit_seconds

    def send(self, alert: Alert) -> bool:
        """Queue an alert and return at once. False if it was held back or dropped. Never raises."""
        if os.getpid() != self._pid:
            return False
        try:
            with self._lock:
                return self._queue_alert(alert)
        except Exception:  # an observer never raises into a training step
            _logger.warning("sonde: an alert could not be queued", exc_info=True)
            return False

    def _queue_alert(self, alert: Alert) -> bool:
        now = time.monotonic()
        while self._sent and now - self._sent[0] > _HOUR:
            self._sent.popleft()
        if len(self._sent) >= self._max_per_hour:
            self._num_held_back += 1
            return False
        try:
            self._queue.put_nowait(
                replace(alert, num_held_back=self._num_held_back, mlflow_run=open_mlflow_run())
            )
        except queue.Full:
            self._num_held_back += 1
            return False
        self._sent.append(now)
        self._num_held_back = 0
        if self._thread is None:
            self._thread = threading.Thread(
                target=_deliver_all, args=(self._queue, self._states), daemon=True
            )
            self._thread.name = "sonde-alerts"
            self._thread.start()
            atexit.register(_wait_at_exit, self._queue, self._exit_seconds, self._pid)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait until everything queued was delivered or given up, at most so long. Return whether
        it was.
        """
        return _wait(self._queue, seconds)


def _wait(waiting: "queue.Queue[Alert]", seconds: float) -> bool:
    end = time.monotonic() + seconds
    while waiting.unfinished_tasks:
        if time.monotonic() >= end:
            return False
        time.sleep(0.005)
    return True


def _deliver_all(waiting: "queue.Queue[Alert]", states: list[_State]) -> None:
    """Deliver alerts for as long as the process lives."""
    while True:
        alert = waiting.get()
        try:
            for state in states:
                _deliver(state, alert)
        finally:
            waiting.task_done()


def _deliver(state: _State, alert: Alert) -> None:
    if state.is_given_up:
        return
    try:
        state.target.deliver(alert)
        state.num_failures = 0
    except Exception as error:  # noqa: BLE001  whatever a target does, the training goes on
        state.num_failures += 1
        if state.num_failures == 1:
            # Only the type: the text of a network error may hold the address, which is a secret.
            _logger.warning(
                "sonde: %s did not take an alert (%s)", state.target.name, type(error).__name__
            )
        if state.num_failures >= _MAX_FAILURES:
            state.is_given_up = True
            _logger.warning(
                "sonde: %s failed %d times and gets no more alerts",
                state.target.name,
                state.num_failures,
            )


def _wait_at_exit(waiting: "queue.Queue[Alert]", seconds: float, pid: int) -> None:
    if os.getpid() == pid:
        _wait(waiting, seconds)
