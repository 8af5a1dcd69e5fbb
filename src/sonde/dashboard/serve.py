"""The server: its port, the printed URL, the browser, and an HTTP protocol with a request timeout."""

import asyncio
import os
import secrets
import socket
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sonde.dashboard.app import create_app
from sonde.dashboard.folder import RunFolder
from sonde.dashboard.guard import LOOPBACK, is_loopback
from sonde.errors import SettingError

PORT: Final = 8642
_PORTS_TRIED: Final = 20
REQUEST_SECONDS: Final = 10.0
_MAX_CONNECTIONS: Final = 256


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Where the server listens, and who may connect."""

    runs: Path
    """The directory that holds the runs, or a single run."""
    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach requires a token."""
    port: int | None = None
    """The port. By default the first free one from 8642 on."""
    token: str | None = None
    """The access token. Generated if one is needed and none is given."""
    allow_jobs: bool = False
    """Allow buttons that start a diagnosis or a replay. Requires a token, because other users of this machine can reach
    the port."""

    def __post_init__(self) -> None:
        if not self.runs.is_dir():
            raise SettingError(f"{self.runs} is not a directory", hint="give the directory that holds your runs")
        if self.port is not None and not 0 <= self.port < 65536:
            raise SettingError(f"a port is 0 to 65535, not {self.port}")
        if self.token is not None and (len(self.token) < 16 or not self.token.isascii() or not self.token.isalnum()):
            raise SettingError("a token has 16 letters and digits or more", hint="leave --token out, and one is made")


@final
class _Impatient(H11Protocol):
    """HTTP/1.1 that closes connections whose request is not complete within ten seconds."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the deadline for a new connection."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Pass data on and update the deadline."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Start the deadline again for a request that may have begun in the meantime."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set a deadline while a request is incomplete; a complete request has no time limit."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


@final
class DashboardServer:
    """A server bound to its port. `run` serves until it is interrupted."""

    def __init__(self, settings: ServerSettings) -> None:
        is_local = is_loopback(settings.host)
        token = settings.token
        if token is None and (not is_local or settings.allow_jobs):
            token = secrets.token_hex(16)
        self._socket = _listen(settings.host, settings.port)
        names = {settings.host.strip("[]").lower()}
        names |= set() if is_local else {socket.gethostname().lower(), socket.getfqdn().lower()}
        folder, jobs = RunFolder(settings.runs), settings.allow_jobs
        app = create_app(folder, hosts=LOOPBACK | names, any_address=not is_local, token=token, allow_jobs=jobs)
        self.port: int = self._socket.getsockname()[1]
        host = settings.host if settings.host not in ("0.0.0.0", "::") else socket.gethostname()  # noqa: S104  compared, not bound
        host = f"[{host.strip('[]')}]" if ":" in host else host
        self.address = f"http://{host}:{self.port}/" + (f"?token={token}" if token else "")
        config = uvicorn.Config(
            app,
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
        self._server = uvicorn.Server(config)

    @property
    def is_up(self) -> bool:
        """True if the server accepts requests."""
        return self._server.started

    def run(self) -> None:
        """Serve until interrupted or stopped."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Stop the server from another thread."""
        self._server.should_exit = True


def open_browser(address: str) -> bool:
    """Open the page in a browser if there is a desktop."""
    has_desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not has_desktop or os.environ.get("SSH_CONNECTION"):
        return False
    return webbrowser.open(address)


def _listen(host: str, port: int | None) -> socket.socket:
    ports = range(PORT, PORT + _PORTS_TRIED) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: OSError | None = None
    for number in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), number))
            listening.listen(128)  # clients that are faster than the server wait instead of being refused
            return listening
        except OSError as error:
            listening.close()
            problem = error
    told, cause = f"cannot listen at {host} port {ports[0]}", None if problem is None else problem.strerror
    raise SettingError(told, cause=cause, hint="give another --port, or --port 0 for any free one")
