"""Alerts arrive, and never get in the way: with a real server on this machine, one that answers and
one that never does.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sonde.alerts import Alert, Alerts, alert_of_event, command, webhook
from sonde.alerts.targets import discord_body, form_of, plain_body, slack_body
from sonde.errors import SettingError
from sonde.forensics.verdict import Cause, Suspect, Verdict
from sonde.spikes.detectors import SPIKE, Event

EVENT = Event(
    kind=SPIKE,
    metric="loss",
    first_step=917,
    last_step=917,
    num_bad=1,
    value=25.0,
    baseline=3.71,
    z=36.0,
    peak=25.0,
    peak_step=917,
)
CAUSE = Cause(
    cause="garbled_text",
    title="The batch holds garbled text.",
    confidence=0.93,
    suspects=(
        Suspect(dataset="train", sample=20117, file="corpus.txt", line=88, text="#2§%% <X0Q&1>"),
    ),
)
ALERT = Alert(step=917, kind="spike", title="The loss is 25, expected 3.71.", path="/runs/mine")


@contextmanager
def answering(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that keeps what is posted to it."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/secret-token", received
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/secret-token"


def test_an_alert_has_the_step_the_cause_the_row_and_the_path() -> None:
    alert = alert_of_event("runs/mine", EVENT, Verdict(run_id="x", step=917, causes=(CAUSE,)))
    assert alert.text().splitlines() == [
        "sonde: step 917, spike. The loss is 25, expected 3.71.",
        "cause: The batch holds garbled text (93%)",
        "row: train 20117, corpus.txt:88, '#2§%% <X0Q&1>'",
        f"run: {Path('runs/mine').absolute()} on {socket.gethostname()}",
    ]


def test_an_alert_without_a_verdict_says_what_happened_alone() -> None:
    alert = alert_of_event("runs/mine", EVENT)
    assert (alert.step, alert.cause, alert.row) == (917, "", "")


def test_a_webhook_gets_the_document() -> None:
    with answering() as (url, received):
        alerts = Alerts(url)
        assert alerts.send(ALERT)
        assert alerts.wait(10)
    (document,) = received
    assert document == {**ALERT.document(), "text": ALERT.text()}
    assert (document["format"], document["step"]) == ("sonde-alert", 917)


def test_slack_and_discord_are_known_by_their_host_and_get_their_own_form() -> None:
    alert = alert_of_event("runs/mine", EVENT, Verdict(run_id="x", step=917, causes=(CAUSE,)))
    assert form_of("hooks.slack.com") is slack_body
    assert form_of("discord.com") is discord_body
    assert form_of("slack.com.evil.org") is plain_body
    assert "&lt;X0Q&amp;1&gt;" in slack_body(alert)["text"]
    assert discord_body(alert)["allowed_mentions"] == {"parse": []}
    assert discord_body(alert)["content"] == alert.text()


def test_a_server_that_never_answers_costs_a_sender_nothing() -> None:
    with silent() as url:
        alerts = Alerts(url, max_per_hour=1000, exit_seconds=0.0)
        began = time.perf_counter()
        sent = [alerts.send(ALERT) for _ in range(200)]
        spent = time.perf_counter() - began
    assert spent < 0.5  # 200 alerts; one answer would take ten seconds
    assert sent[0]
    assert not all(sent)  # the queue is full, and the rest was dropped


@pytest.mark.slow
@pytest.mark.parametrize("exit_seconds", [0.0, 1.0])
def test_a_server_that_never_answers_does_not_keep_the_process(exit_seconds: float) -> None:
    code = (
        "import sys, time\n"
        "from sonde.alerts import Alert, Alerts\n"
        f"alerts = Alerts(sys.argv[1], exit_seconds={exit_seconds})\n"
        "began = time.perf_counter()\n"
        "alerts.send(Alert(step=1, kind='spike', title='x'))\n"
        "print(time.perf_counter() - began, time.time(), flush=True)\n"
    )
    with silent() as url:
        done = subprocess.run(
            [sys.executable, "-c", code, url], capture_output=True, text=True, timeout=60
        )
        ended = time.time()
    assert done.returncode == 0, done.stderr
    spent, said = map(float, done.stdout.split())
    assert spent < 0.1
    assert ended - said < exit_seconds + 2.0


@pytest.mark.slow
def test_an_alert_sent_just_before_the_end_arrives() -> None:
    code = (
        "import sys\n"
        "from sonde.alerts import Alert, Alerts\n"
        "Alerts(sys.argv[1]).send(Alert(step=7, kind='nonfinite', title='The loss is nan.'))\n"
    )
    with answering() as (url, received):
        subprocess.run([sys.executable, "-c", code, url], check=True, timeout=60)
    assert [document["step"] for document in received] == [7]


def test_a_failing_target_is_named_once_without_its_address_and_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with answering(500) as (url, received), caplog.at_level(logging.WARNING, "sonde"):
        alerts = Alerts(url)
        for _ in range(8):
            alerts.send(ALERT)
        assert alerts.wait(20)
    assert len(received) == 5
    # A thread of an earlier test may still have something to say: of ours, these are the last.
    messages = [record.getMessage() for record in caplog.records]
    assert messages[-2:] == [
        "sonde: the webhook at 127.0.0.1 did not take an alert (HTTPError)",
        "sonde: the webhook at 127.0.0.1 failed 5 times and gets no more alerts",
    ]
    assert "secret-token" not in caplog.text


def test_a_target_that_raises_does_not_keep_the_others_from_their_alert() -> None:
    taken: list[int] = []

    def breaks(alert: Alert) -> None:
        raise SystemError("broken")

    def takes(alert: Alert) -> None:
        taken.append(alert.step)

    alerts = Alerts(breaks, takes)
    alerts.send(ALERT)
    assert alerts.wait(10)
    assert taken == [917]


def test_too_many_alerts_are_held_back_and_counted() -> None:
    texts: list[str] = []
    alerts = Alerts(lambda alert: texts.append(alert.text()), max_per_hour=2)
    assert [alerts.send(ALERT) for _ in range(5)] == [True, True, False, False, False]
    alerts._sent.clear()  # an hour later
    assert alerts.send(ALERT)
    assert alerts.wait(10)
    assert len(texts) == 3
    assert texts[2].endswith("(3 more were held back since the last message)")


def test_a_command_gets_the_text_and_the_document_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out file"
    script = (
        "import os, sys; open(sys.argv[1], 'w').write(os.environ['SONDE_ALERT'] + sys.stdin.read())"
    )
    target = command(f"{sys.executable} -c \"{script}\" '{out}'")
    alerts = Alerts(target)
    alerts.send(ALERT)
    assert alerts.wait(30)
    assert out.read_text() == ALERT.text() + json.dumps(ALERT.document())


def test_a_forked_child_sends_nothing() -> None:
    alerts = Alerts(print)
    alerts._pid = os.getpid() + 1
    assert alerts.send(ALERT) is False


@pytest.mark.parametrize("address", ["ftp://x/y", "file:///etc/passwd", "https://"])
def test_an_address_that_is_no_webhook_is_refused_without_being_repeated(address: str) -> None:
    with pytest.raises(SettingError, match="a webhook is an address with http or https") as refused:
        webhook(address)
    assert "passwd" not in str(refused.value)


def test_alerts_need_a_target() -> None:
    with pytest.raises(SettingError, match="nowhere to go"):
        Alerts()
