"""The server: its port, the printed URL, the routes, an HTTP protocol with a request timeout. Runs are read in threads.

/                      the runs                         ?q= ?sort= ?page=
/run/NAME              curves and events                ?metric= ?rank= ?from= ?to= ?log=
/run/NAME/step/N       an event: samples, verdict, tensors
/run/NAME/samples      the worst samples; likewise checkpoints, log, settings
/compare               several runs                     ?run= ?run= ?metric= ?x= ?smooth=
/api/curves, /api/compare, /api/sparks    points, for the script
/live                  server-sent events
/jobs                  the output of a job

    data: ["steps.rank0.jsonl","spikes.rank0.jsonl"]

A page is notified within half a second of a write. The message names what changed and contains no data: the page then
requests what it shows. Resources are bounded: a limited number of streams (pages beyond it poll every few seconds), ten
minutes per stream, and ten seconds for a client that does not read.

Jobs are started by a button, one at a time, each in its own process that ends when the page is left, and only with
`sonde dashboard --allow-jobs`. A request can only choose `sonde diagnose RUN --step N` or `sonde replay RUN --step N`,
name a known run of the folder, and give a number. The output is streamed as it is.
"""

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from sonde.dashboard import frame, run_page
from sonde.dashboard.folder import SONDE, RunFolder, state_of
from sonde.dashboard.frame import number, whole
from sonde.dashboard.guard import LOOPBACK, Guard, is_loopback
from sonde.dashboard.runs_pages import compare_page, compared_data, runs_page
from sonde.errors import RunError, RunNotFound, SettingError, SondeError
from sonde.report.html.markup import tag
from sonde.report.run_curves import CURVES, LOSS, Stretch, run_data

PORT: Final = 8642
_PORTS_TRIED: Final = 20
REQUEST_SECONDS: Final = 10.0
_MAX_CONNECTIONS: Final = 256
_ARENA_MAX: Final = -8
"""The number of this option in malloc.h of glibc."""
_THREADS: Final = 4
"""Number of threads that read runs; each uses its own memory."""
_MAX_SPARKS: Final = 24
_MAX_METRICS: Final = 12
_MAX_COMPARED: Final = 64
_MAX_POINTS: Final = 4000
MAX_STREAMS: Final = 48
_JOBS: Final = ("diagnose", "replay")
_CHANGE_SECONDS: Final = 0.4
_BEAT_SECONDS: Final = 15.0
_JOB_SECONDS: Final = 86_400.0
_PATIENCE_SECONDS: Final = 10.0


class _Impatient(H11Protocol):
    """HTTP/1.1 that closes connections whose request is not complete within ten seconds."""

    def connection_made(self, transport: Any) -> None:
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Close the connection, unless a complete request is being answered: that has no time limit."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()


class DashboardServer:
    """A server bound to its port. `run` serves until it is interrupted, or until `server.should_exit` is set.

    An address that other machines can reach requires a token, and so do jobs, because other users of this machine can
    reach the port. A token is generated if one is needed and none is given.
    """

    def __init__(
        self,
        runs: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        token: str | None = None,
        allow_jobs: bool = False,
    ) -> None:
        if not runs.is_dir():
            raise SettingError(f"{runs} is not a directory", hint="give the directory that holds your runs")
        if port is not None and not 0 <= port < 65536:
            raise SettingError(f"a port is 0 to 65535, not {port}")
        if token is not None and (len(token) < 16 or not token.isascii() or not token.isalnum()):
            raise SettingError("a token has 16 letters and digits or more", hint="leave --token out, and one is made")
        is_local = is_loopback(host)
        if token is None and (not is_local or allow_jobs):
            token = secrets.token_hex(16)
        self._socket = _listen(host, port)
        names = {host.strip("[]").lower()}
        names |= set() if is_local else {socket.gethostname().lower(), socket.getfqdn().lower()}
        guard = Middleware(Guard, hosts=LOOPBACK | names, any_address=not is_local, token=token)
        self.port: int = self._socket.getsockname()[1]
        shown = host.strip("[]") if host not in ("0.0.0.0", "::") else socket.gethostname()  # noqa: S104  compared, not bound
        shown = f"[{shown}]" if ":" in shown else shown
        self.address = f"http://{shown}:{self.port}/" + (f"?token={token}" if token else "")
        config = uvicorn.Config(
            _create_app(RunFolder(runs), guard, allow_jobs),
            http=_Impatient,
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=32_768,
        )
        self.server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until interrupted or stopped."""
        with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc
            # One heap for all threads: each would keep the memory of the runs that it once read.
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
        with self._socket:
            self.server.run(sockets=[self._socket])


def open_browser(address: str) -> bool:
    """Open the page in a browser if there is a desktop."""
    has_desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not has_desktop or os.environ.get("SSH_CONNECTION"):
        return False
    return webbrowser.open(address)


def _listen(host: str, port: int | None) -> socket.socket:
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_both = host.strip("[]") == "::" and socket.has_dualstack_ipv6()
    problem = ""
    for one in ports:
        try:
            # With a backlog, clients that are faster than the server wait instead of being refused.
            return socket.create_server((host.strip("[]"), one), family=family, backlog=128, dualstack_ipv6=is_both)
        except OSError as error:
            problem = error.strerror or str(error)
    told = f"cannot listen at {host} port {ports[0]}"
    raise SettingError(told, cause=problem, hint="give another --port, or --port 0 for any free one")


def _create_app(folder: RunFolder, guard: Middleware, allow_jobs: bool) -> Starlette:
    """Create the application. `guard` controls access; `allow_jobs` permits starting diagnoses and replays."""
    pages = _Pages(folder, allow_jobs)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        yield

    read = [
        Route("/", pages.runs),
        Route("/run/{path:path}", pages.run),
        Route("/compare", pages.compare),
        Route("/api/curves", pages.curves),
        Route("/api/compare", pages.compared),
        Route("/api/sparks", pages.sparks),
        Route("/static/{name}", _static),
        Route("/live", pages.live),
    ]
    work = [Route("/jobs", pages.job, methods=["POST"])]
    return Starlette(
        routes=read + (work if allow_jobs else []),
        middleware=[guard, Middleware(GZipMiddleware, minimum_size=600, compresslevel=5)],
        exception_handlers=dict.fromkeys((SondeError, OSError), _refused),
        lifespan=lifespan,
    )


class _Pages:
    """The handlers behind the routes."""

    def __init__(self, folder: RunFolder, allow_jobs: bool) -> None:
        self.folder = folder
        self.allow_jobs = allow_jobs
        self.slots = asyncio.Semaphore(MAX_STREAMS)
        self.job_slot = asyncio.Lock()

    def runs(self, request: Request) -> Response:
        query = request.query_params
        page = whole(query.get("page"), 1)
        return HTMLResponse(runs_page(self.folder, query.get("q", ""), query.get("sort", ""), page))

    def run(self, request: Request) -> Response:
        name, part, rest = self._split(request.path_params["path"])
        row = self.folder.row(name, self.folder.path(name))
        with self.folder.open(name) as run:
            if part == "step":
                return HTMLResponse(run_page.event_page(name, run, whole(rest), allow_jobs=self.allow_jobs))
            return HTMLResponse(run_page.page(row, run, part, request.query_params))

    def compare(self, request: Request) -> Response:
        names = _names(request)
        known = self.folder.runs()
        rows = [self.folder.row(name, known[name]) for name in names if name in known]
        metrics: dict[str, None] = dict.fromkeys(["loss"])
        for row in rows[:8]:
            with contextlib.suppress(RunError, OSError), self.folder.open(row.name) as run:
                metrics |= dict.fromkeys(run.curves().names[:500])
        unknown = [name for name in names if name not in known]
        return HTMLResponse(compare_page(rows, list(metrics), dict(request.query_params), unknown))

    def curves(self, request: Request) -> Response:
        query, stretch = request.query_params, _stretch(request, 1600)
        rank, metrics = query.get("rank"), query.getlist("metric")
        if len(metrics) > _MAX_METRICS:
            raise SettingError(f"at most {_MAX_METRICS} metrics at once, not {len(metrics)}")
        with self.folder.open(query.get("run", "")) as run:
            events = [spike.event for spike in run.spikes().spikes]
            one_rank = whole(rank) if rank else None
            return _json(run_data(run.curves(), events, stretch, metrics=metrics, rank=one_rank))

    def compared(self, request: Request) -> Response:
        query, known = request.query_params, self.folder.runs()
        names = [name for name in _names(request) if name in known]
        stretch = _stretch(request, max(200, min(1200, 16_000 // max(len(names), 1))))
        metric, axis = query.get("metric", "loss"), query.get("x", "step")
        smooth = number(query.get("smooth"), 0.0) or 0.0
        return _json(compared_data(self.folder, names, stretch, metric=metric, axis=axis, smooth=smooth))

    def sparks(self, request: Request) -> Response:
        found = {}
        for name in request.query_params.getlist("run")[:_MAX_SPARKS]:
            with contextlib.suppress(SondeError, OSError), self.folder.open(name) as run:
                found[name] = {"spark": "", "events": ""}  # in case it cannot be read
                curve, num_events = run.curves().first_of(CURVES[LOSS]), len(run.spikes().spikes)
                found[name] = {"spark": frame.spark(curve), "events": f"{num_events or ''}"}
        return _json(found)

    async def live(self, request: Request) -> Response:
        path = self.folder.path(request.query_params.get("run", ""))
        return _EventStream(_changes(path), self.slots)

    async def job(self, request: Request) -> Response:
        query = request.query_params
        kind, step = query.get("kind", ""), whole(query.get("step"))
        if kind not in _JOBS or step < 1:
            raise SettingError(f"a job is one of {', '.join(_JOBS)} of a step from 1 on")
        if self.job_slot.locked():
            raise SettingError("a job is running", hint="wait until it has ended")
        command = [*SONDE, kind, str(self.folder.path(query.get("run", ""))), "--step", str(step)]
        return _EventStream(_output(command, self.job_slot), self.slots, _JOB_SECONDS)

    def _split(self, path: str) -> tuple[str, str, str]:
        """Split a path into run name, part, and the argument of that part. A run name may contain slashes."""
        known = self.folder.runs()
        name, _, last = path.rpartition("/")
        before, _, word = name.rpartition("/")
        for run, part, rest in ((path, "", ""), (name, last, ""), (before, word, last)):
            if run in known and (part == "step" if rest else part in run_page.PARTS):
                return run, part, rest
        raise RunNotFound(f"there is no run {path!r:.200} below {self.folder.root}")


def _refused(_: Request, error: Exception) -> Response:
    """Return an error page for a request that failed."""
    code = 404 if isinstance(error, RunNotFound) else 400 if isinstance(error, SettingError) else 500
    message = getattr(error, "message", None) or str(error)
    head = tag("header", frame.crumbs(), tag("h1", "That cannot be shown"))
    return HTMLResponse(frame.document("not shown", head, tag("p", message)), status_code=code)


def _static(request: Request) -> Response:
    kind, content = frame.assets().get(request.path_params["name"], ("", b""))
    if not kind:
        return PlainTextResponse("There is no such file.\n", status_code=404)
    return Response(content, media_type=kind, headers={"cache-control": "max-age=31536000, immutable"})


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _names(request: Request) -> list[str]:
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if len(names) > _MAX_COMPARED:
        raise SettingError(f"at most {_MAX_COMPARED} runs are compared at once, not {len(names)}")
    return names


def _stretch(request: Request, points: int) -> Stretch:
    query = request.query_params
    first, last = number(query.get("from"), None), number(query.get("to"), None)
    points = whole(query.get("points"), points)
    if not 2 <= points <= _MAX_POINTS:
        raise SettingError(f"points is 2 to {_MAX_POINTS}, not {points}")
    return Stretch(first, last, points)


class _EventStream(StreamingResponse):
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


async def _changes(run: Path) -> AsyncIterator[bytes]:
    """Yield a message for every change of a run's files, and a heartbeat after a long pause."""
    before = await run_in_threadpool(state_of, run)
    yield b"retry: 2000\n\n"
    beat = time.monotonic()
    while True:
        await asyncio.sleep(_CHANGE_SECONDS)
        now = await run_in_threadpool(state_of, run)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        before = now
        if changed or time.monotonic() - beat > _BEAT_SECONDS:
            beat = time.monotonic()
            yield b"data: " + orjson.dumps(changed) + b"\n\n" if changed else b": still here\n\n"


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
