"""The server: its port, the printed URL, the browser, and an HTTP protocol with a request timeout."""

import contextlib
import ctypes
import os
import secrets
import socket
import sys
import webbrowser
from pathlib import Path
from typing import Any, Final

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
_ARENA_MAX: Final = -8
"""The number of this option in malloc.h of glibc."""


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
        hosts, folder = LOOPBACK | names, RunFolder(runs)
        app = create_app(folder, hosts=hosts, any_address=not is_local, token=token, allow_jobs=allow_jobs)
        self.port: int = self._socket.getsockname()[1]
        shown = host.strip("[]") if host not in ("0.0.0.0", "::") else socket.gethostname()  # noqa: S104  compared, not bound
        shown = f"[{shown}]" if ":" in shown else shown
        self.address = f"http://{shown}:{self.port}/" + (f"?token={token}" if token else "")
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
        self.server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until interrupted or stopped."""
        with contextlib.suppress(AttributeError, OSError, TypeError):  # not glibc
            # One heap for all threads: each would keep the memory of the runs that it once read.
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
        try:
            self.server.run(sockets=[self._socket])
        finally:
            self._socket.close()


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
