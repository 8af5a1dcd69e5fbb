"""Who may ask for what: a matrix of requests against a real server."""

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_server import ask, serving, token_of

from sonde.dashboard import serve
from sonde.dashboard.guard import is_loopback
from sonde.dashboard.serve import MAX_STREAMS, DashboardServer
from sonde.errors import SettingError


@pytest.fixture(scope="module")
def guarded(runs: Path) -> Iterator[DashboardServer]:
    """A server that anybody on the network could reach."""
    with serving(runs, host="0.0.0.0") as server:
        yield server


@pytest.fixture(scope="module")
def working(runs: Path) -> Iterator[DashboardServer]:
    with serving(runs, allow_jobs=True) as server:
        yield server


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9999", 200),  # ssh -L gives it another port
        ("localhost:80", 200),
        ("LOCALHOST", 200),
        ("[::1]:8642", 200),
        ("evil.example", 421),
        ("evil.example:8642", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
        ("", 421),
        ("127.0.0.1, evil.example", 421),
        ("localhost:80:80", 421),
        ("[::1]", 200),
        ("[::1]evil.com", 421),
        ("[::1]evil.com:80", 421),
        ("[::1].evil.com", 421),
        ("[::1", 421),
        ("::1", 421),
        ("[localhost]", 421),
        ("[127.0.0.1]", 421),
        ("[::1]:", 421),
        ("[::1]:80x", 421),
        ("localhost:", 421),
        ("localhost:evil.com", 421),
        ("localhost:99999", 421),
        ("localhost:-1", 421),
        ("evil.com@localhost", 421),
        ("localhost/evil.com", 421),
        (".localhost", 421),
        ("localhost.", 421),
        ("localhost#x", 421),
        ("127.0.0.1:80, localhost", 421),
    ],
)
def test_only_hosts_that_name_this_machine_are_answered(
    server: DashboardServer, host: str, status: int
) -> None:
    assert ask(server.port, "/", headers={"Host": host}).status == status


def test_every_answer_carries_the_policy_and_allows_no_other_origin(
    server: DashboardServer,
) -> None:
    for path in ("/", "/run/nowhere", "/static/dashboard.js", "/api/sparks", "/nothing"):
        headers = ask(server.port, path, headers={"Origin": "http://evil.example"}).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert not [name for name in headers if name.startswith("access-control")]
        assert "server" not in headers


def test_pages_have_nothing_inline(server: DashboardServer) -> None:
    for path in ("/", "/run/ranks", "/compare?run=ranks"):
        page = ask(server.port, path).text
        assert "<style" not in page
        assert " style=" not in page
        assert page.count("<script") == 1
        assert "<script src=" in page
        assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"]
)
def test_only_reading_is_possible(server: DashboardServer, method: str) -> None:
    assert ask(server.port, "/", method=method).status == 405


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_sites_page_asks_for_is_refused(server: DashboardServer, site: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    for path in ("/api/sparks", "/live?run=ranks", "/", "/static/dashboard.js"):
        assert ask(server.port, path, headers=headers).status == 403
    assert (
        ask(server.port, "/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status
        == 200
    )


@pytest.mark.parametrize(
    "path",
    [
        "/run/../../etc/passwd",
        "/run/%2e%2e/%2e%2e/etc/passwd",
        "/run//etc/passwd",
        "/run/ranks/../../secret",
        "/run/ranks%00",
        "/run/ranks/records/log.rank0.jsonl",
        "/run/sweep",
        "/static/../app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/dashboard.css%00.js",
        "/static/",
        "/api/curves?run=../outside",
        "/api/curves?run=/etc",
        "/api/curves?run=",
        "/live?run=../outside",
        "/run/" + "a/" * 1000,
        "/run/%ff%fe",
    ],
)
def test_no_path_leads_out_of_the_runs(server: DashboardServer, runs: Path, path: str) -> None:
    answer = ask(server.port, path)
    assert answer.status == 404
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?q=" + "x" * 20_000, 414),
        ("/" + "x" * 5000, 414),
        ("/api/curves?run=ranks&points=1000000", 400),
        ("/api/curves?run=ranks&points=-1", 400),
        ("/api/curves?run=ranks&points=nan", 400),
        ("/api/curves?run=ranks&from=1e999", 400),
        ("/api/curves?run=ranks&from=x", 400),
        ("/api/curves?run=ranks&rank=-1", 400),
        ("/api/curves?run=ranks&rank=99999", 200),
        ("/api/curves?run=ranks" + "".join(f"&metric=m{number}" for number in range(41)), 400),
        ("/api/compare?" + "&".join(f"run=r{number}" for number in range(65)), 400),
        ("/api/compare?run=ranks&x=__proto__", 400),
        ("/api/compare?run=ranks&smooth=inf", 400),
        ("/api/compare?run=ranks&smooth=1e300", 200),
        ("/?page=99999999999999999999", 400),
        ("/?page=99999999", 200),
        ("/?sort=__class__", 200),
        ("/run/ranks/step/-5", 400),
        ("/run/ranks/step/1e99", 400),
        ("/run/ranks/step/x", 400),
        ("/run/ranks/log?rank=x", 400),
    ],
)
def test_huge_and_odd_questions_are_refused_or_bounded(
    server: DashboardServer, path: str, status: int
) -> None:
    assert ask(server.port, path).status == status


def test_a_head_that_does_not_end_is_cut_off(server: DashboardServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET /?q=" + b"x" * 60_000)
        assert client.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": "999999999"}, {"Transfer-Encoding": "chunked"}, {"Content-Length": "-1"}],
)
def test_requests_have_no_bodies(server: DashboardServer, headers: dict[str, str]) -> None:
    assert ask(server.port, "/", headers=headers).status in (400, 413)


def test_beyond_this_machine_a_token_is_demanded(guarded: DashboardServer) -> None:
    token = token_of(guarded.address)
    assert len(token) >= 32
    for path in (
        "/",
        "/run/ranks",
        "/api/curves?run=ranks",
        "/live?run=ranks",
        "/static/dashboard.js",
    ):
        assert ask(guarded.port, path).status == 401
        assert (
            ask(guarded.port, f"{path}{'&' if '?' in path else '?'}token={token[:-1]}x").status
            == 401
        )
    answer = ask(guarded.port, f"//evil.example/run/ranks?rank=1&token={token}")
    assert answer.status == 303
    assert answer.headers["location"] == "/evil.example/run/ranks?rank=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    name = cookie.partition(";")[0]
    assert ask(guarded.port, "/", headers={"Cookie": f"other=1; {name}"}).status == 200
    assert ask(guarded.port, "/", headers={"Cookie": name[:-1]}).status == 401
    assert (
        ask(guarded.port, "/", headers={"Cookie": name, "Host": "192.168.1.7:80"}).status == 401
    )  # its cookie is another
    assert ask(guarded.port, f"/?token={token}", headers={"Host": "192.168.1.7:80"}).status == 303
    assert ask(guarded.port, f"/?token={token}", headers={"Host": "evil.example"}).status == 421


def test_a_token_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    for token in ("", "short", "with spaces and so on", "ünïcödë-ünïcödë-ünïcödë"):
        with pytest.raises(SettingError, match="a token has 16"):
            DashboardServer(tmp_path, token=token)
    with pytest.raises(SettingError, match="is not a directory"):
        DashboardServer(tmp_path / "none")
    with pytest.raises(SettingError, match="a port is"):
        DashboardServer(tmp_path, port=70_000)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_a_port_that_is_taken_is_said(server: DashboardServer, runs: Path) -> None:
    with pytest.raises(SettingError, match="cannot listen"):
        DashboardServer(runs, port=server.port)


def test_jobs_are_off_unless_allowed(server: DashboardServer) -> None:
    assert (
        ask(
            server.port,
            "/jobs?kind=replay&run=ranks&step=1",
            method="POST",
            headers={"X-Sonde": "1"},
        ).status
        == 403
    )
    headers = {"X-Sonde": "1", "Origin": f"http://127.0.0.1:{server.port}"}
    assert (
        ask(
            server.port, "/jobs?kind=replay&run=ranks&step=1", method="POST", headers=headers
        ).status
        == 404
    )


def test_jobs_demand_the_token_our_header_and_our_origin(working: DashboardServer) -> None:
    here = f"http://127.0.0.1:{working.port}"
    path = "/jobs?kind=replay&run=ranks&step=1"
    cookie = f"sonde-{working.port}={token_of(working.address)}"
    for headers in (
        {"Cookie": cookie},
        {"Cookie": cookie, "X-Sonde": "1"},
        {"Cookie": cookie, "Origin": here},
        {"Cookie": cookie, "X-Sonde": "1", "Origin": "http://evil.example"},
        {"Cookie": cookie, "X-Sonde": "1", "Origin": here, "Sec-Fetch-Site": "cross-site"},
    ):
        assert ask(working.port, path, method="POST", headers=headers).status == 403
    allowed = {"X-Sonde": "1", "Origin": here}
    assert ask(working.port, path, method="POST", headers=allowed).status == 401
    for wrong in (
        "kind=rm&run=ranks&step=1",
        "kind=replay&run=../x&step=1",
        "kind=replay&run=ranks&step=0",
        "kind=replay&run=ranks&step=1;ls",
    ):
        answer = ask(
            working.port, f"/jobs?{wrong}", method="POST", headers={**allowed, "Cookie": cookie}
        )
        assert answer.status in (400, 404)


@pytest.mark.slow
def test_a_job_runs_and_its_words_are_streamed(working: DashboardServer) -> None:
    headers = {
        "X-Sonde": "1",
        "Origin": f"http://127.0.0.1:{working.port}",
        "Cookie": f"sonde-{working.port}={token_of(working.address)}",
    }
    path = "/jobs?kind=replay&run=trained&step=1"
    connection = http.client.HTTPConnection("127.0.0.1", working.port, timeout=60)
    connection.request("POST", path, headers=headers)
    answer = connection.getresponse()
    assert ask(working.port, path, method="POST", headers=headers).status == 400  # one at a time
    told = answer.read().decode()
    assert "error:" in told  # its data is not there
    assert told.endswith("ended with 1\n")
    connection.request("POST", path, headers=headers)
    connection.getresponse()
    connection.close()  # whoever leaves ends the job
    deadline = time.monotonic() + 30
    while ask(working.port, path, method="POST", headers=headers).status == 400:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "data-job" in ask(working.port, "/run/trained/step/1", headers=headers).text
    # A run that kept nothing cannot be replayed: there is no button, and no job.
    assert "data-job" not in ask(working.port, "/run/sweep/lr-0/step/1", headers=headers).text
    path = "/jobs?kind=replay&run=sweep/lr-0&step=1"
    answered = ask(working.port, path, method="POST", headers=headers)
    assert (answered.status, "kept no states" in answered.text) == (400, True)


@pytest.mark.slow
def test_two_hundred_streams_are_bounded_and_the_rest_goes_on(server: DashboardServer) -> None:
    with contextlib.ExitStack() as opened:
        answers = []
        for _ in range(200):
            stream = opened.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=10)
            )
            stream.sendall(b"GET /live?run=ranks HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(stream)
        first = [stream.recv(12) for stream in answers]
        assert first.count(b"HTTP/1.1 200") == MAX_STREAMS
        assert first.count(b"HTTP/1.1 503") == 200 - MAX_STREAMS
        assert ask(server.port, "/").status == 200
    deadline = time.monotonic() + 20  # their places are free again once they have gone
    while True:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stream:
            stream.sendall(b"GET /live?run=ranks HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if stream.recv(12) == b"HTTP/1.1 200":
                break
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: loc",
        b"GET /static/dashboard.css HTTP/1.1\r\nHost: localhost\r\n\r\nGET /",
    ],
)
def test_a_client_that_never_finishes_its_question_is_let_go(
    runs: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.5)
    with (
        serving(runs) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as client,
    ):
        client.sendall(said)
        began = time.monotonic()
        while client.recv(65536):
            pass
        assert time.monotonic() - began < 5
