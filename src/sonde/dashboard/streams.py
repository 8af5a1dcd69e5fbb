"""Streams to a page: what changes in runs, and the output of a job. They are bounded in number and
in time.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from sonde.dashboard.folder import state_of, status_of
from sonde.records.catalog import KILLED

_STATUS_SECONDS: Final = 2.0
_CHANGE_SECONDS: Final = 0.4
_BEAT_SECONDS: Final = 15.0
_PATIENCE_SECONDS: Final = 10.0


class EventStream(StreamingResponse):
    """A stream of messages to one client for as long as it reads."""

    media_type = "text/event-stream"

    def __init__(
        self, messages: AsyncIterator[bytes], slots: asyncio.Semaphore, seconds: float = 600.0
    ) -> None:
        super().__init__(messages)
        self._slots = slots
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client leaves, stops reading or its time is over, then close the
        connection.
        """
        if self._slots.locked():
            busy = PlainTextResponse(
                "Too many streams are open.\n", status_code=503, headers={"retry-after": "5"}
            )
            await busy(scope, receive, send)
            return

        async def patient(message: Message) -> None:
            await asyncio.wait_for(send(message), _PATIENCE_SECONDS)

        async with self._slots:
            with contextlib.suppress(asyncio.TimeoutError, OSError):
                await asyncio.wait_for(super().__call__(scope, receive, patient), self._seconds)


async def changes_of(runs: Sequence[Path]) -> AsyncIterator[bytes]:
    """Yield a message for every change of the runs' files or status, and a heartbeat after a long
    pause.
    """

    def look(with_status: bool) -> dict[tuple[Path, str], Any]:
        found: dict[tuple[Path, str], Any] = {}
        for run in runs:
            found |= {(run, name): state for name, state in state_of(run).items()}
            if with_status:
                # A process that was killed changes no file.
                found[run, "status"] = status_of(run)
        return found

    before = await run_in_threadpool(look, True)
    yield b"retry: 2000\n\n"
    if any(before[run, "status"] == KILLED for run in runs):
        # It may have been killed since the page was made, and no file will change any more.
        yield b'data: ["status"]\n\n'
    beat = time.monotonic()
    status_at = time.monotonic()
    while True:
        # Many runs are looked at less often: each takes some calls of the system.
        await asyncio.sleep(_CHANGE_SECONDS * (1 + len(runs) // 8))
        with_status = time.monotonic() - status_at > _STATUS_SECONDS
        now = await run_in_threadpool(look, with_status)
        if with_status:
            status_at = time.monotonic()
        else:
            now |= {key: state for key, state in before.items() if key[1] == "status"}
        changed = sorted(
            {
                name
                for run, name in {**before, **now}
                if before.get((run, name)) != now.get((run, name))
            }
        )
        before = now
        if changed or time.monotonic() - beat > _BEAT_SECONDS:
            beat = time.monotonic()
            yield b"data: " + orjson.dumps(changed) + b"\n\n" if changed else b": still here\n\n"


async def output_of(command: Sequence[str], slot: asyncio.Lock) -> AsyncIterator[bytes]:
    """Run a command and yield its output, then its exit code. It is terminated when nobody reads
    any more.
    """
    async with slot:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "110"},
        )
        assert process.stdout is not None
        try:
            while part := await process.stdout.read(1 << 14):
                yield part
            yield f"\nended with {await process.wait()}\n".encode()
        finally:
            if process.returncode is None:
                process.terminate()
