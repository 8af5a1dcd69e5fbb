"""Being asked to stop from outside."""

import os
import signal
import time

import pytest

from sonde.train.stopping import stop_signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_is_noted_does_not_interrupt_and_ends_the_process_after_the_block(
    number: int, code: int
) -> None:
    noted: list[int] = []

    def work() -> None:
        with stop_signals() as signals:
            os.kill(os.getpid(), number)
            noted.extend(signals)

    with pytest.raises(SystemExit) as exit_:
        work()
    assert noted == [number]
    assert exit_.value.code == code


def test_the_former_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_signal_exits_at_once() -> None:
    pid = os.fork()
    if pid == 0:
        with stop_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
