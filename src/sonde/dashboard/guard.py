"""Access control, applied to every request.

* Only a Host header that names this machine is answered, so no other site can reach the server
  under its own domain.
* With a token, only clients that have it: the printed URL carries it once, then it is a cookie that
  no script can read.
* Reading is GET. Background requests from other sites are refused, and no response allows another
  origin (no CORS).
* Pages may use only this server's script and style: nothing inline, nothing from other hosts, no
  frames.
* URLs and request bodies are limited in size.
"""

import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_MAX_QUERY: Final = 16_384
_MAX_PATH: Final = 4096
_MAX_BODY: Final = 4096
_MAX_TOKEN: Final = 512
_HOST: Final = re.compile(
    r"(?:\[(?P<literal>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
"""A Host header: a literal IPv6 address in brackets, or a name or IPv4 address; then a port."""


class Guard:
    """ASGI middleware that checks every request before the application sees it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str],
        token: str | None = None,
        any_address: bool = False,
    ) -> None:
        """`hosts` are the host names of this server; with `any_address`, any IP address is accepted
        too.
        """
        self._app = app
        self._hosts = hosts
        self._token = token
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # websockets are not supported

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        refusal = self._refusal(request)
        if refusal is not None:
            return PlainTextResponse(refusal[1] + "\n", status_code=refusal[0])
        # Named by port: cookies ignore ports, and two servers on one machine have two tokens.
        port = request.headers["host"].rpartition(":")[2]
        cookie = f"sonde-{port if port.isdecimal() else 'token'}"
        if self._token is None or _are_equal(request.cookies.get(cookie, ""), self._token):
            return None
        given = dict(request.query_params)
        if not _are_equal(given.pop("token", ""), self._token):
            sentence = "Open the address that `sonde dashboard` printed: it carries a token.\n"
            return PlainTextResponse(sentence, status_code=401)
        # Keep a single leading slash: with two, the path would be the address of another host.
        address = (
            "/" + request.scope["path"].lstrip("/") + ("?" + urlencode(given) if given else "")
        )
        answer = RedirectResponse(address, status_code=303)
        answer.set_cookie(cookie, self._token, httponly=True, samesite="strict", path="/")
        return answer

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        scope = request.scope
        headers = request.headers
        method = request.method
        if not self._is_known(headers.getlist("host")):
            return 421, "This server does not answer to that host name."
        if len(scope["query_string"]) > _MAX_QUERY or len(scope.get("raw_path") or b"") > _MAX_PATH:
            return 414, "The address is too long."
        body = headers.get("content-length", "0")
        if not body.isdecimal() or int(body[:20]) > _MAX_BODY or "transfer-encoding" in headers:
            return 413, "Requests have no such body here."
        if method not in ("GET", "HEAD") and (scope["path"], method) != ("/jobs", "POST"):
            return 405, "Only GET."
        is_elsewhere = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        if is_elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "Another site's page asked for this."
        # Forms of other sites cannot set this header, and their scripts may not.
        is_from_here = headers.get("origin", "").partition("://")[2] == headers["host"]
        if method == "POST" and not (headers.get("x-sonde") == "1" and is_from_here):
            return 403, "Only a page of this server may do that."
        return None

    def _is_known(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        name = _host_name(hosts[0])
        if name is None:
            return False
        return name in self._hosts or (self._any_address and _is_address(name))


def _are_equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given[:_MAX_TOKEN].encode(), token.encode())


def _host_name(host: str) -> str | None:
    """Return the name or address in a Host header, without its port; None if it is malformed.

    `name`, `name:port`, `1.2.3.4:port` or `[::1]:port`, with nothing before, between or after.
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    port = match["port"]
    if port is not None and not 0 <= int(port) < 65536:
        return None
    literal = match["literal"]
    if literal is None:
        return match["name"].lower()
    return literal.lower() if ":" in literal and _is_address(literal) else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    address: Any = host.strip("[]")
    return address in LOOPBACK or (
        _is_address(address) and ipaddress.ip_address(address).is_loopback
    )
