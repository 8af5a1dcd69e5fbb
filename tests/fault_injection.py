"""Faults at the N-th call that changes the disk, and children to die of them.

Every writer of sonde goes through `sonde.records.disk`, so a test can first list the calls that a
save makes and then repeat the save with a fault at each of them in turn:

    calls = disk_calls_of(save)
    for position in range(len(calls)):
        exit_code = run_in_child(lambda: save_with(kill, position))
        … whatever is on the disk now must be the old state or the new …

A fault is a function that is called in place of the disk call, with its name, the real function and
the arguments:

    kill              SIGKILL instead of the call
    kill_after        half of a write, or the whole of any other call, then SIGKILL
    failing(errno)    OSError instead of the call (a file is closed all the same, as Linux does)
    short_write       half of a write, reported truly; other calls as they are
"""

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias
from unittest import mock

from sonde.records import disk

Fault: TypeAlias = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]

OPERATIONS: Final = ("open_file", "write", "fsync", "close", "replace", "mkdir", "unlink", "rmdir")
KILLED: Final = -signal.SIGKILL
"""What `run_in_child` returns for a child that was killed."""


def disk_calls_of(action: Callable[[], object]) -> list[str]:
    """The names of the disk calls that `action` makes, in order."""
    with faults_where(lambda _operation, _position: False, kill) as calls:
        action()
    return calls


@contextlib.contextmanager
def fault_at(position: int, fault: Fault) -> Iterator[list[str]]:
    """Within the block, the disk call number `position` (from 0) meets `fault`. Gives the growing
    list of calls made.
    """
    with faults_where(lambda _operation, number: number == position, fault) as calls:
        yield calls


@contextlib.contextmanager
def faults_of(operation: str, fault: Fault) -> Iterator[list[str]]:
    """Within the block, every call of one operation meets `fault`."""
    with faults_where(lambda name, _number: name == operation, fault) as calls:
        yield calls


@contextlib.contextmanager
def faults_where(hit: Callable[[str, int], bool], fault: Fault) -> Iterator[list[str]]:
    """Within the block, each disk call for which `hit(name, position)` is true meets `fault`."""
    calls: list[str] = []

    def seam(operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(operation)
            if hit(operation, len(calls) - 1):
                return fault(operation, real, arguments)
            return real(*arguments)

        return call

    with contextlib.ExitStack() as stack:
        for operation in OPERATIONS:
            stack.enter_context(
                mock.patch.object(disk, operation, seam(operation, getattr(disk, operation)))
            )
        yield calls


def kill(operation: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Die before the call."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(operation: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Die in the middle of a write, or right after any other call."""
    short_write(operation, real, arguments)
    os.kill(os.getpid(), signal.SIGKILL)


def failing(errno: int) -> Fault:
    """Fail with `errno`."""

    def fail(operation: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if operation == "close":
            real(*arguments)
        raise OSError(errno, os.strerror(errno))

    return fail


def short_write(operation: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Write half of the bytes (at least one) and say so."""
    if operation != "write":
        return real(*arguments)
    descriptor, payload = arguments
    return real(descriptor, bytes(payload)[: max(len(payload) // 2, 1)])


def start_child(action: Callable[[], object]) -> int:
    """Fork a child that runs `action` and nothing else of this process; returns its process id."""
    with warnings.catch_warnings():
        # From 3.12 on Python warns of forking beside threads; pytest-timeout keeps one, which the
        # child never misses.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        action()
        exit_code = 0
    except BaseException:  # noqa: BLE001  the child ends here, whatever it was
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(exit_code)


def exit_code_of(pid: int) -> int:
    """Wait for a child: 0 when its action returned, 1 when it raised, minus the signal that ended
    it.

    A child that hangs for a minute is killed: once in thousands of forks it inherits a lock that a
    thread of ours held.
    """
    deadline = time.monotonic() + 60
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def run_in_child(action: Callable[[], object]) -> int:
    """Run `action` in a forked child to its end."""
    return exit_code_of(start_child(action))
