"""A dashboard server for tests: the real one, in a thread, on a port of its own."""

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from sonde.dashboard.serve import DashboardServer


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


@contextlib.contextmanager
def serving(runs: Path, **settings: Any) -> Iterator[DashboardServer]:
    """A server that answers; `address` and `port` say where."""
    server = DashboardServer(runs, port=0, **settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def ask(
    port: int, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> Answer:
    """One request, as it is: nothing is normalised on the way."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read().decode("utf-8", "replace"),
        )
    finally:
        connection.close()


def token_of(address: str) -> str:
    """The token in the address that is printed."""
    return urlsplit(address).query.partition("token=")[2]
