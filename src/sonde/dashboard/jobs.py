"""Diagnoses and replays that a button starts, one at a time, each a process of its own whose words are streamed to the page.

Only with `sonde dashboard --allow-jobs`. What runs is `sonde diagnose RUN --step N` or `sonde replay RUN --step N` for a run of the folder: nothing in a
request becomes part of a command but the choice between the two, a run that is known, and a number.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, final

import orjson

from sonde.dashboard.open_runs import SONDE
from sonde.errors import RunNotFound, SettingError

KINDS: Final = ("diagnose", "replay")
_MAX_OUTPUT: Final = 200_000
_MAX_KEPT: Final = 20
_LOOK_SECONDS: Final = 0.2


@final
class Job:
    """A process that was started, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = b""
        self.code: int | None = None

    async def listen(self) -> None:
        """Take down what it says until it ends."""
        assert self.process.stdout is not None
        while part := await self.process.stdout.read(1 << 14):
            self.said = (self.said + part)[:_MAX_OUTPUT]
        self.code = await self.process.wait()

    async def messages(self) -> AsyncIterator[bytes]:
        """Its words as server-sent events, from the first on, then its exit code."""
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
            yield b""
            await asyncio.sleep(_LOOK_SECONDS)


@final
class Jobs:
    """The jobs of this server."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._number = 0
        self._listening: set[asyncio.Task[None]] = set()

    async def start(self, kind: str, run: Path, step: int) -> int:
        """Start one; returns its number. Raises SettingError when one is running."""
        if kind not in KINDS or step < 1:
            raise SettingError(f"a job is one of {', '.join(KINDS)} of a step from 1 on")
        if any(job.code is None for job in self._jobs.values()):
            raise SettingError("a job is running", hint="wait until it has ended")
        process = await asyncio.create_subprocess_exec(
            *(*SONDE, kind, str(run), "--step", str(step)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "110"},
        )
        job = Job(process)
        task = asyncio.create_task(job.listen())
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)
        self._number += 1
        self._jobs[self._number] = job
        self._jobs.pop(self._number - _MAX_KEPT, None)
        return self._number

    def get(self, number: int) -> Job:
        """A job by its number; the last few are known."""
        if number not in self._jobs:
            raise RunNotFound("there is no such job")
        return self._jobs[number]

    async def stop(self) -> None:
        """End what runs."""
        for job in self._jobs.values():
            if job.code is None:
                job.process.terminate()
