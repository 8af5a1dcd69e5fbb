"""The routes of the dashboard. Runs are read in threads; errors are shown as plain text.

/                      the runs                         ?q= ?sort= ?page=
/run/NAME              curves and events                ?metric= ?rank= ?from= ?to= ?log=
/run/NAME/step/N       an event: samples, verdict, tensors
/run/NAME/samples      the worst samples; likewise checkpoints, log, settings
/compare               several runs                     ?run= ?run= ?metric= ?x= ?smooth=
/api/curves, /api/compare, /api/sparks    points, for the script
/live                  server-sent events
/jobs                  the output of a job
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import anyio.to_thread
import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from sonde.dashboard import frame, run_page
from sonde.dashboard.folder import OpenRuns, RunFolder
from sonde.dashboard.frame import number, whole
from sonde.dashboard.guard import Guard
from sonde.dashboard.runs_pages import compare_page, compared_data, runs_page
from sonde.dashboard.streams import JOB_SECONDS, MAX_STREAMS, EventStream, changes, job
from sonde.errors import RunError, RunNotFound, SettingError, SondeError
from sonde.report.html.markup import tag
from sonde.report.run_curves import CURVES, LOSS, Stretch, run_data

_THREADS: Final = 4
"""Number of threads that read runs; each uses its own memory."""
_MAX_SPARKS: Final = 24
_MAX_METRICS: Final = 12
_MAX_COMPARED: Final = 64
_MAX_POINTS: Final = 4000


def create_app(
    folder: RunFolder, *, hosts: frozenset[str], any_address: bool, token: str | None, allow_jobs: bool
) -> Starlette:
    """Create the application. `Guard` controls access; `allow_jobs` permits starting diagnoses and replays."""
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
    guard = Middleware(Guard, hosts=hosts, token=token, any_address=any_address)
    middleware = [guard, Middleware(GZipMiddleware, minimum_size=600, compresslevel=5)]
    return Starlette(
        routes=read + (work if allow_jobs else []),
        middleware=middleware,
        exception_handlers=dict.fromkeys((SondeError, OSError), _refused),
        lifespan=lifespan,
    )


class _Pages:
    """The handlers behind the routes."""

    def __init__(self, folder: RunFolder, allow_jobs: bool) -> None:
        self.folder = folder
        self.allow_jobs = allow_jobs
        self.open_runs = OpenRuns()
        self.slots = asyncio.Semaphore(MAX_STREAMS)
        self.job_slot = asyncio.Lock()

    def runs(self, request: Request) -> Response:
        query = request.query_params
        page = whole(query.get("page"), 1)
        return HTMLResponse(runs_page(self.folder, query.get("q", ""), query.get("sort", ""), page))

    def run(self, request: Request) -> Response:
        name, part, rest = self._split(request.path_params["path"])
        row = self.folder.row(name, self.folder.path(name))
        with self.open_runs.open(row.summary.directory) as run:
            if part == "step":
                return HTMLResponse(run_page.event_page(name, run, whole(rest), allow_jobs=self.allow_jobs))
            return HTMLResponse(run_page.PARTS[part](row, run, request.query_params))

    def compare(self, request: Request) -> Response:
        names = _names(request)
        known = self.folder.runs()
        rows = [self.folder.row(name, known[name]) for name in names if name in known]
        metrics: dict[str, None] = dict.fromkeys(["loss"])
        for row in rows[:8]:
            with contextlib.suppress(RunError, OSError), self.open_runs.open(row.summary.directory) as run:
                metrics |= dict.fromkeys(run.curves().names[:500])
        unknown = [name for name in names if name not in known]
        return HTMLResponse(compare_page(rows, list(metrics), dict(request.query_params), unknown))

    def curves(self, request: Request) -> Response:
        query, stretch = request.query_params, _stretch(request, 1600)
        rank, metrics = query.get("rank"), query.getlist("metric")
        if len(metrics) > _MAX_METRICS:
            raise SettingError(f"at most {_MAX_METRICS} metrics at once, not {len(metrics)}")
        with self.open_runs.open(self.folder.path(query.get("run", ""))) as run:
            events = [spike.event for spike in run.spikes().spikes]
            one_rank = whole(rank) if rank else None
            return _json(run_data(run.curves(), events, stretch, metrics=metrics, rank=one_rank))

    def compared(self, request: Request) -> Response:
        query, names, known = request.query_params, _names(request), self.folder.runs()
        stretch = _stretch(request, max(200, min(1200, 16_000 // max(len(names), 1))))
        runs = {name: known[name] for name in names if name in known}
        metric, axis = query.get("metric", "loss"), query.get("x", "step")
        smooth = number(query.get("smooth"), 0.0) or 0.0
        return _json(compared_data(self.open_runs, runs, stretch, metric=metric, axis=axis, smooth=smooth))

    def sparks(self, request: Request) -> Response:
        known = self.folder.runs()
        names = [name for name in request.query_params.getlist("run")[:_MAX_SPARKS] if name in known]
        return _json({name: self._spark(name) for name in names})

    async def live(self, request: Request) -> Response:
        path = self.folder.path(request.query_params.get("run", ""))
        return EventStream(changes(path), self.slots)

    async def job(self, request: Request) -> Response:
        query = request.query_params
        run, step = self.folder.path(query.get("run", "")), whole(query.get("step"))
        return EventStream(job(query.get("kind", ""), run, step, self.job_slot), self.slots, JOB_SECONDS)

    def _split(self, path: str) -> tuple[str, str, str]:
        """Split a path into run name, part, and the argument of that part. A run name may contain slashes."""
        known = self.folder.runs()
        name, _, last = path.rpartition("/")
        if path in known:
            return path, "", ""
        if name in known and last in run_page.PARTS:
            return name, last, ""
        before, _, word = name.rpartition("/")
        if before in known and word == "step":
            return before, word, last
        raise RunNotFound(f"there is no run {path!r:.200} below {self.folder.root}")

    def _spark(self, name: str) -> dict[str, str]:
        try:
            with self.open_runs.open(self.folder.path(name)) as run:
                curve, num_events = run.curves().first_of(CURVES[LOSS]), len(run.spikes().spikes)
        except (SondeError, OSError):
            return {"spark": "", "events": ""}
        return {"spark": frame.spark(curve), "events": f"{num_events or ''}"}


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
