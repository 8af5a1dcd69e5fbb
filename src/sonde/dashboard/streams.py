"""Server-sent events for the pages: changes in a run, and the output of a job.

    data: ["steps.rank0.jsonl","spikes.rank0.jsonl"]

A page is notified within half a second of a write. The message names what changed and contains no data: the page then
requests what it shows. Resources are bounded: a limited number of streams (pages beyond it poll every few seconds), ten
minutes per stream, and ten seconds for a client that does not read.

Jobs are diagnoses and replays started by a button, one at a time, each in its own process that ends when the page is
left, and only with `sonde dashboard --allow-jobs`. Their output is streamed as it is. The command is `sonde diagnose RUN --step N` or `sonde replay RUN --step N`. A request can only
choose between the two, name a known run of the folder, and give a number.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from sonde.dashboard.folder import SONDE, state_of
from sonde.errors import SettingError

MAX_STREAMS: Final = 48
KINDS: Final = ("diagnose", "replay")
_LOOK_SECONDS: Final = 0.4
_BEAT_SECONDS: Final = 15.0
JOB_SECONDS: Final = 86_400.0
_PATIENCE_SECONDS: Final = 10.0


class EventStream(StreamingResponse):
    """A stream of messages to one client for as long as it reads."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes], slots: asyncio.Semaphore, seconds: float = 600.0) -> None:
        super().__init__(messages)
        self._slots = slots
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client leaves, stops reading or its time is over, then close the connection."""
        if self._slots.locked():
            busy = PlainTextResponse("Too many streams are open.\n", status_code=503, headers={"retry-after": "5"})
            await busy(scope, receive, send)
            return

        async def patient(message: Message) -> None:
            await asyncio.wait_for(send(message), _PATIENCE_SECONDS)

        async with self._slots:
            with contextlib.suppress(asyncio.TimeoutError, OSError):
                await asyncio.wait_for(super().__call__(scope, receive, patient), self._seconds)


async def changes(run: Path) -> AsyncIterator[bytes]:
    """Yield a message for every change of a run's files, and a heartbeat after a long pause."""
    before = await run_in_threadpool(state_of, run)
    yield b"retry: 2000\n\n"
    beat = time.monotonic()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = await run_in_threadpool(state_of, run)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        before = now
        if changed or time.monotonic() - beat > _BEAT_SECONDS:
            beat = time.monotonic()
            yield b"data: " + orjson.dumps(changed) + b"\n\n" if changed else b": still here\n\n"


def job(kind: str, run: Path, step: int, slot: asyncio.Lock) -> AsyncIterator[bytes]:
    """Return the output of a new job; raise SettingError if it may not start or another one is running."""
    if kind not in KINDS or step < 1:
        raise SettingError(f"a job is one of {', '.join(KINDS)} of a step from 1 on")
    if slot.locked():
        raise SettingError("a job is running", hint="wait until it has ended")
    return _output([*SONDE, kind, str(run), "--step", str(step)], slot)


async def _output(command: Sequence[str], slot: asyncio.Lock) -> AsyncIterator[bytes]:
    """Run a command and yield its output, then its exit code. It is terminated when nobody reads any more."""
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
