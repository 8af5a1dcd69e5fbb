"""What has changed in a run, as server-sent events: a page hears of it within half a second of the write.

    data: ["steps.rank0.jsonl","spikes.rank0.jsonl"]

A message names what changed and holds no data: the page asks for what it shows. Bounded: at most a few streams at once (further ones are refused,
and their pages ask every few seconds instead), one look at the files for all of them, ten minutes a stream, ten seconds for a reader that does not read.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sonde.dashboard.folder import State, state_of

MAX_STREAMS: Final = 48
_LOOK_SECONDS: Final = 0.4
_BEAT_SECONDS: Final = 15.0
_LIFE_SECONDS: Final = 600.0
_PATIENCE_SECONDS: Final = 10.0


@final
class Watch:
    """The state of runs as of a moment ago: however many pages ask, the files are looked at once."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[float, State]] = {}

    async def state(self, run: Path) -> State:
        """How the files of a run stand."""
        looked, state = self._seen.get(run, (0.0, {}))
        if time.monotonic() - looked >= _LOOK_SECONDS:
            state = await run_in_threadpool(state_of, run)
            self._seen[run] = (time.monotonic(), state)
            if len(self._seen) > 4 * MAX_STREAMS:
                self._seen.pop(next(iter(self._seen)))
        return state

    async def changes(self, run: Path) -> AsyncIterator[bytes]:
        """A message for every change, a beat when there is none for long, nothing in between."""
        before = await self.state(run)
        yield b"retry: 2000\n\n"
        beat = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = await self.state(run)
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            before = now
            if changed:
                yield b"data: " + orjson.dumps(changed) + b"\n\n"
            elif time.monotonic() - beat > _BEAT_SECONDS:
                yield b": still here\n\n"
            else:
                yield b""
                continue
            beat = time.monotonic()


@final
class EventStream(Response):
    """A stream of messages to one reader, as long as it reads."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes], slots: asyncio.Semaphore) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._messages = messages
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader goes, sleeps, or its time is over."""
        if self._slots.locked():
            busy = Response("Too many streams are open.\n", status_code=503, headers={"retry-after": "5"})
            await busy(scope, receive, send)
            return
        await self._slots.acquire()
        gone = asyncio.create_task(_wait_for_end(receive))
        until = time.monotonic() + _LIFE_SECONDS
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for message in self._messages:
                if gone.done() or time.monotonic() > until:
                    break
                if message:
                    body = {"type": "http.response.body", "body": message, "more_body": True}
                    await asyncio.wait_for(send(body), _PATIENCE_SECONDS)
            await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), _PATIENCE_SECONDS)
        except (asyncio.TimeoutError, OSError):
            pass  # it does not read: the connection is closed
        finally:
            gone.cancel()
            self._slots.release()


async def _wait_for_end(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
