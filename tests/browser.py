"""A real browser for tests: Debian's chromium, headless, spoken to over a pipe in its own protocol.
Needs no package and no port.

Where there is no chromium the tests that need it are skipped, which pytest's summary (-ra) tells;
with CI=true that is a failure.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

_TIMEOUT_SECONDS = 60.0


def find_chromium() -> str:
    """The browser's path; skips the test where there is none, or fails it with CI=true."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    sentence = "NO CHROMIUM: the report was not looked at in a browser (apt-get install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


class Browser:
    """One page of a headless chromium. Use it in a `with` block."""

    def __init__(
        self, chromium: str, profile: Path, *, width: int = 1100, height: int = 900
    ) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        options += [
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--disable-background-networking",
        ]
        # The protocol's pipe is file descriptors 3 and 4, by definition.
        command = [
            "bash",
            "-c",
            f'exec "$@" 3<&{to_read} 4>&{to_write}',
            "bash",
            chromium,
            *options,
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        try:
            self.call("Browser.close")
        except (OSError, EOFError):
            pass  # it may close the pipe before it answers
        self._process.wait(timeout=30)
        os.close(self._write)
        os.close(self._read)

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the page since it was opened: from scripts, and from the
        policy.
        """
        sentences = []
        for event in self._events:
            kind = event["method"]
            details = event["params"]
            if kind == "Runtime.exceptionThrown":
                sentences.append(
                    str(details["exceptionDetails"].get("exception", {}).get("description"))
                )
            elif kind == "Runtime.consoleAPICalled" and details["type"] in (
                "error",
                "warning",
                "assert",
            ):
                sentences.append(str(details["args"]))
            elif kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
                sentences.append(details["entry"]["text"])
        return sentences

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What the page has asked the network for since it was opened; needs `Network.enable`."""
        return [
            event["params"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def bytes_received(self) -> float:
        """What came over the network since the page was opened, as it was sent; needs
        `Network.enable`.
        """
        finished = [
            event["params"]
            for event in self._events
            if event["method"] == "Network.loadingFinished"
        ]
        return float(sum(outcome["encodedDataLength"] for outcome in finished))

    def open(self, page: Path | str) -> None:
        """Load a file, or an address, and wait until it is there."""
        self._events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            assert time.monotonic() < deadline, f"{page} was not loaded"
            self._receive(deadline)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = _TIMEOUT_SECONDS) -> Any:
        """The value of a JavaScript expression once it is true; fails when it never becomes so."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.01)
        return value

    def resize(self, width: int, height: int) -> None:
        """Give the page another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event as the machine would send it: mouseMoved, mousePressed, mouseReleased,
        mouseWheel.
        """
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            received = os.read(self._read, 1 << 20)
            if not received:
                raise EOFError("the browser has gone")
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message
