"""Server-sent events for the pages: changes in a run, and the output of a job.

    data: ["steps.rank0.jsonl","spikes.rank0.jsonl"]

A page is notified within half a second of a write. The message names what changed and contains no data: the page then
requests what it shows. Resources are bounded: a limited number of streams (pages beyond it poll every few seconds), ten
minutes per stream, and ten seconds for a client that does not read.

Jobs are diagnoses and replays started by a button, one at a time, each in its own process, and only with `sonde
dashboard --allow-jobs`. The command is `sonde diagnose RUN --step N` or `sonde replay RUN --step N`. A request can only
choose between the two, name a known run of the folder, and give a number.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from sonde.dashboard.folder import SONDE, state_of
from sonde.errors import RunNotFound, SettingError

MAX_STREAMS: Final = 48
KINDS: Final = ("diagnose", "replay")
_LOOK_SECONDS: Final = 0.4
_LISTEN_SECONDS: Final = 0.2
_BEAT_SECONDS: Final = 15.0
_LIFE_SECONDS: Final = 600.0
_PATIENCE_SECONDS: Final = 10.0
_MAX_OUTPUT: Final = 200_000


@final
class EventStream(StreamingResponse):
    """A stream of messages to one client for as long as it reads."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes], slots: asyncio.Semaphore) -> None:
        super().__init__(messages)
        self._slots = slots

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
                await asyncio.wait_for(super().__call__(scope, receive, patient), _LIFE_SECONDS)


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


@final
class Job:
    """A started process and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = b""
        self.code: int | None = None
        self.listening = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        """Collect the output until the process ends."""
        assert self.process.stdout is not None
        while part := await self.process.stdout.read(1 << 14):
            self.said = (self.said + part)[:_MAX_OUTPUT]
        self.code = await self.process.wait()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the output as server-sent events from the beginning, then the exit code."""
        given = 0
        while True:
            ended, text = self.code, self.said
            if len(text) > given:
                words = text[given:].decode("utf-8", "replace")
                given = len(text)
                yield b"data: " + orjson.dumps({"text": words}) + b"\n\n"
            if ended is not None:
                yield b"data: " + orjson.dumps({"code": ended}) + b"\n\n"
                return
            await asyncio.sleep(_LISTEN_SECONDS)


@final
class Jobs:
    """The jobs of this server: one at a time, and the latest is kept."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._number = 0

    async def start(self, kind: str, run: Path, step: int) -> int:
        """Start a job and return its number; raise SettingError if one is already running."""
        if kind not in KINDS or step < 1:
            raise SettingError(f"a job is one of {', '.join(KINDS)} of a step from 1 on")
        if self._job is not None and self._job.code is None:
            raise SettingError("a job is running", hint="wait until it has ended")
        process = await asyncio.create_subprocess_exec(
            *(*SONDE, kind, str(run), "--step", str(step)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "110"},
        )
        self._job = Job(process)
        self._number += 1
        return self._number

    def get(self, number: int) -> Job:
        """Return the latest job by its number."""
        if self._job is None or number != self._number:
            raise RunNotFound("there is no such job")
        return self._job

    async def stop(self) -> None:
        """Terminate a running job."""
        if self._job is not None and self._job.code is None:
            self._job.process.terminate()
