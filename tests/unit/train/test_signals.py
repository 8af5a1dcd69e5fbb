"""Being asked to stop from outside."""

import os
import signal
import time

import pytest

from sonde.train.stopping import StopSignals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_is_noted_and_does_not_interrupt(number: int, code: int) -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), number)
        assert signals.received == number
        assert signals.name == signal.Signals(number).name
    with pytest.raises(SystemExit) as exit_:
        signals.exit_if_received()
    assert exit_.value.code == code
    StopSignals().exit_if_received()


def test_the_former_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_exits_at_once() -> None:
    pid = os.fork()
    if pid == 0:
        with StopSignals():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
