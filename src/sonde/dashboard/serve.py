"""The server: its port, the printed URL, the routes, an HTTP protocol with a request timeout. Runs
are read in threads.

    /                  the runs             ?q= ?sort= ?col= ?group= ?fold= ?page=
    /run/NAME          curves and events    ?filter= ?rank= ?from= ?to= ?x= ?smooth=
    /run/NAME/step/N   an event: verdict, samples, tensors    ?attempt=
    /run/NAME/samples  the worst samples; likewise checkpoints, check, audit, log, settings
    /compare           several runs         ?run= ?metric= ?x= ?smooth= ?colour= ?hide=
    /api/curves, /api/compare, /api/sparks, /api/metrics    points and names, for the script
    /csv               all values of metrics                ?run= ?metric= ?x= ?rank=
    /live              server-sent events   ?run= ?run=
    /jobs              the output of a job

A page is notified within half a second of a write. The message names what changed and contains no
data, as in `data: ["steps.rank0.jsonl"]`: the page then requests what it shows. Resources are
bounded: a limited number of streams (pages beyond it poll every few seconds), ten minutes per
stream, and ten seconds for a client that does not read.

Jobs are started by a button, one at a time, each in its own process that ends when the page is
left, and only with `sonde dashboard --allow-jobs`. A request can only choose `sonde diagnose RUN
--step N` or `sonde replay RUN --step N`, name a known run of the folder, and give a number. For a
run of somebody's own script this runs the command that the run recorded: the page shows it, and
asks first. The output is streamed as it is.
"""

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from sonde.dashboard import frame, run_page
from sonde.dashboard.compare_page import compare_page, compared_data
from sonde.dashboard.event_page import event_page
from sonde.dashboard.folder import SONDE, RunFolder
from sonde.dashboard.frame import whole
from sonde.dashboard.guard import LOOPBACK, Guard, is_loopback
from sonde.dashboard.queries import csv_rows, json_answer, metric_names, run_names, view_of
from sonde.dashboard.replaying import AGAIN, YES, how_to_replay
from sonde.dashboard.runs_page import DEFAULT, NEWEST, ListQuery, runs_page
from sonde.dashboard.streams import EventStream, changes_of, output_of
from sonde.errors import RunError, RunNotFound, SettingError, SondeError
from sonde.report import wording
from sonde.report.axes import STEP
from sonde.report.html.markup import tag
from sonde.report.panels import run_panels, sections
from sonde.report.run_curves import LOSS

PORT: Final = 8642
_PORTS_TRIED: Final = 20
REQUEST_SECONDS: Final = 10.0
_MAX_CONNECTIONS: Final = 256
_ARENA_MAX: Final = -8
"""The number of this option in malloc.h of glibc."""
_THREADS: Final = 4
"""Number of threads that read runs; each uses its own memory."""
_MAX_SPARKS: Final = 24
_MAX_COLUMNS: Final = 60
MAX_STREAMS: Final = 48
_JOBS: Final = ("diagnose", "replay")
_JOB_SECONDS: Final = 86_400.0


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
        """Close the connection, unless a complete request is being answered: that has no time
        limit.
        """
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()


class DashboardServer:
    """A server bound to its port. `run` serves until it is interrupted, or until
    `server.should_exit` is set.

    An address that other machines can reach requires a token, and so do jobs, because other users
    of this machine can reach the port. A token is generated if one is needed and none is given.
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
            raise SettingError(
                f"{runs} is not a directory", hint="give the directory that holds your runs"
            )
        if port is not None and not 0 <= port < 65536:
            raise SettingError(f"a port is 0 to 65535, not {port}")
        if token is not None and (len(token) < 16 or not token.isascii() or not token.isalnum()):
            raise SettingError(
                "a token has 16 letters and digits or more",
                hint="leave --token out, and one is made",
            )
        is_local = is_loopback(host)
        if token is None and (not is_local or allow_jobs):
            token = secrets.token_hex(16)
        self._socket = _listen(host, port)
        names = {host.strip("[]").lower()}
        names |= set() if is_local else {socket.gethostname().lower(), socket.getfqdn().lower()}
        guard = Middleware(Guard, hosts=LOOPBACK | names, any_address=not is_local, token=token)
        self.port: int = self._socket.getsockname()[1]
        # compared, not bound
        shown = host.strip("[]") if host not in ("0.0.0.0", "::") else socket.gethostname()  # noqa: S104
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
    has_desktop = sys.platform == "darwin" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if not has_desktop or os.environ.get("SSH_CONNECTION"):
        return False
    return webbrowser.open(address)


def _listen(host: str, port: int | None) -> socket.socket:
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_both = host.strip("[]") == "::" and socket.has_dualstack_ipv6()
    problem = ""
    for tried in ports:
        try:
            # With a backlog, clients that are faster than the server wait instead of being refused.
            return socket.create_server(
                (host.strip("[]"), tried), family=family, backlog=128, dualstack_ipv6=is_both
            )
        except OSError as error:
            problem = error.strerror or str(error)
    sentence = f"cannot listen at {host} port {ports[0]}"
    raise SettingError(
        sentence, cause=problem, hint="give another --port, or --port 0 for any free one"
    )


def _create_app(folder: RunFolder, guard: Middleware, allow_jobs: bool) -> Starlette:
    """Create the application. `guard` controls access; `allow_jobs` permits starting diagnoses and
    replays.
    """
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
        Route("/api/metrics", pages.metrics),
        Route("/csv", pages.csv),
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
        columns = tuple(dict.fromkeys(query.getlist("col")[:_MAX_COLUMNS]))
        wanted = ListQuery(
            search=query.get("q", ""),
            sort=query.get("sort") or NEWEST,
            columns=columns or DEFAULT,
            group=query.get("group", ""),
            folded=tuple(query.getlist("fold")),
            page=whole(query.get("page"), 1),
        )
        return HTMLResponse(runs_page(self.folder, wanted))

    def run(self, request: Request) -> Response:
        name, part, rest = self._split(request.path_params["path"])
        query = request.query_params
        row = self.folder.row(name, self.folder.path(name))
        with self.folder.open(name) as run:
            if part == "step":
                attempt = whole(query.get("attempt"), 0)
                page = event_page(
                    row, run, whole(rest), attempt=attempt, allow_jobs=self.allow_jobs
                )
                return HTMLResponse(page)
            return HTMLResponse(run_page.page(row, run, part, query))

    def compare(self, request: Request) -> Response:
        names = run_names(request)
        known = self.folder.runs()
        rows = [self.folder.row(name, known[name]) for name in names if name in known]
        metrics: dict[str, None] = dict.fromkeys([LOSS])
        for row in rows[:8]:
            with contextlib.suppress(RunError, OSError), self.folder.open(row.name) as run:
                metrics |= dict.fromkeys(run.curves().names[:500])
        unknown = [name for name in names if name not in known]
        return HTMLResponse(compare_page(rows, list(metrics), dict(request.query_params), unknown))

    def curves(self, request: Request) -> Response:
        query = request.query_params
        metrics = metric_names(request)
        with self.folder.open(query.get("run", "")) as run:
            view = view_of(request, 1600)
            return json_answer(run_panels(run.curves(), run.marks(), run.path, view, metrics))

    def metrics(self, request: Request) -> Response:
        with self.folder.open(request.query_params.get("run", "")) as run:
            return json_answer(sections(run.curves()))

    def compared(self, request: Request) -> Response:
        query = request.query_params
        known = self.folder.runs()
        names = [name for name in run_names(request) if name in known]
        metrics = metric_names(request) or [LOSS]
        points = max(200, min(1200, 16_000 // max(len(names) * len(metrics), 1)))
        view = view_of(request, points)
        return json_answer(
            compared_data(self.folder, names, view, metrics, query.get("colour", ""))
        )

    def csv(self, request: Request) -> Response:
        """Return all values of metrics of runs: a row for each."""
        names = run_names(request)
        metrics = metric_names(request) or [LOSS]
        axis = request.query_params.get("x", STEP)
        for name in names:
            self.folder.path(name)
        rank = request.query_params.get("rank")
        rows = csv_rows(self.folder, names, metrics, axis, whole(rank) if rank else None)
        headers = {"content-disposition": 'attachment; filename="sonde.csv"'}
        return StreamingResponse(rows, media_type="text/csv", headers=headers)

    def sparks(self, request: Request) -> Response:
        found: dict[str, dict[str, Any]] = {}
        for name in request.query_params.getlist("run")[:_MAX_SPARKS]:
            with contextlib.suppress(SondeError, OSError), self.folder.open(name) as run:
                found[name] = {"spark": "", "events": "", "cause": "", "damage": ""}  # unreadable
                details = self.folder.details(name)
                damage = ""
                if details.num_damaged:
                    damage = wording.counted(details.num_damaged, "damaged line")
                found[name] = {
                    "spark": frame.spark(run.find(LOSS)),
                    "events": f"{details.num_events or ''}",
                    "cause": details.cause,
                    "damage": damage,
                }
        return json_answer(found)

    async def live(self, request: Request) -> Response:
        paths = [self.folder.path(name) for name in run_names(request)]
        if not paths:
            raise RunNotFound("no run was named")
        return EventStream(changes_of(paths), self.slots)

    async def job(self, request: Request) -> Response:
        query = request.query_params
        kind = query.get("kind", "")
        step = whole(query.get("step"))
        if kind not in _JOBS or step < 1:
            raise SettingError(f"a job is one of {', '.join(_JOBS)} of a step from 1 on")
        if self.job_slot.locked():
            raise SettingError("a job is running", hint="wait until it has ended")
        name = query.get("run", "")
        path = self.folder.path(name)
        replaying = how_to_replay(path, self.folder.row(name, path).summary.manifest, step)
        if replaying.problem:
            raise SettingError(replaying.problem)
        if replaying.script and query.get("again") != "1":
            raise SettingError("this runs the run's own script, which was not agreed to")
        command = [*SONDE, kind, str(path), "--step", str(step), *replaying.flags]
        if AGAIN in replaying.flags:
            command.append(YES)
        return EventStream(output_of(command, self.job_slot), self.slots, _JOB_SECONDS)

    def _split(self, path: str) -> tuple[str, str, str]:
        """Split a path into run name, part, and the argument of that part. A run name may contain
        slashes.
        """
        known = self.folder.runs()
        name, _, last = path.rpartition("/")
        before, _, word = name.rpartition("/")
        for run, part, rest in ((path, "", ""), (name, last, ""), (before, word, last)):
            if run in known and (part == "step" if rest else part in run_page.PARTS):
                return run, part, rest
        raise RunNotFound(f"there is no run {path!r:.200} below {self.folder.root}")


def _refused(_: Request, error: Exception) -> Response:
    """Return an error page for a request that failed."""
    code = 500
    if isinstance(error, RunNotFound):
        code = 404
    elif isinstance(error, SettingError):
        code = 400
    message = getattr(error, "message", None) or str(error)
    head = tag("header", frame.crumbs(), tag("h1", "That cannot be shown"))
    return HTMLResponse(frame.document("not shown", head, tag("p", message)), status_code=code)


def _static(request: Request) -> Response:
    kind, content = frame.assets().get(request.path_params["name"], ("", b""))
    if not kind:
        return PlainTextResponse("There is no such file.\n", status_code=404)
    return Response(
        content, media_type=kind, headers={"cache-control": "max-age=31536000, immutable"}
    )
