"""`sonde watch`: what is new in runs and logs, told from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from logs_of_others import falling, log_of, nanogpt_line

from sonde.cli.main import run as sonde
from sonde.curves.watching import Watch
from sonde.run import Run


def grow(path: Path, steps: range, planted: dict[int, float] | None = None) -> None:
    with path.open("a") as file:
        file.write(log_of(nanogpt_line, falling(planted), steps))


def test_a_growing_log_is_told_once_and_only_what_is_new(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    grow(log, range(1, 301), {200: 9.0})
    watch = Watch([log])
    assert watch.look() == []  # it was there before
    grow(log, range(301, 401), {350: 12.0})
    (alert,) = watch.look()
    assert (alert.step, alert.kind, alert.path) == (350, "spike", str(log))
    assert alert.title.startswith("The loss is 12 where 2.")
    assert alert.cause.startswith("Probably: The batch")
    assert watch.look() == []


def test_what_happened_before_is_told_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grow(tmp_path / "train.log", range(1, 301), {200: 9.0})
    arguments = [str(tmp_path / "train.log"), "--past", "--until-done"]
    assert sonde(["watch", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["step"]) == ("sonde-alert", 200)
    assert sonde(["watch", *arguments]) == 0
    text = capsys.readouterr().out
    assert "step 200  spike" in text
    assert "The loss is 9 where 3.3" in text


def test_a_run_that_failed_is_told(tmp_path: Path) -> None:
    watch = Watch([tmp_path / "runs"])
    (tmp_path / "runs").mkdir()
    assert watch.look() == []
    with suppress(ValueError), Run(tmp_path / "runs" / "a") as run:
        run.logger.log(step=7, data={"loss": 3.0})
        assert watch.look() == []
        assert watch.is_anything_running
        raise ValueError("out of memory")
    (alert,) = watch.look()
    assert (alert.kind, alert.step) == ("failed", 7)
    assert "out of memory" in alert.title
    assert not watch.is_anything_running
    assert watch.look() == []


@pytest.mark.slow
def test_an_event_of_a_live_run_reaches_a_webhook(tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    log = tmp_path / "train.log"
    grow(log, range(1, 301))
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    command = [sys.executable, "-c", "from sonde.cli.main import main; main()"]
    arguments = ["watch", str(log), "--alert", url, "--every", "0.2", "--json"]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, env={**os.environ}
    ) as process:
        try:
            time.sleep(3)
            grow(log, range(301, 401), {350: 12.0})
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["step"] == 350
            end = time.monotonic() + 20
            while not received and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    server.shutdown()
    server.server_close()
    assert [document["step"] for document in received] == [350]


def test_nothing_to_watch_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sonde(["watch", str(tmp_path / "missing")]) == 1
    assert "there is nothing at" in capsys.readouterr().err
