"""`sonde watch RUNS`: look at runs and logs again and again, print what is new, and send alerts."""

import time
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.alerts.message import Alert
from sonde.alerts.sender import Alerts
from sonde.cli.terminal import json_text, print_indented, screen
from sonde.curves.watching import Watch
from sonde.errors import RunNotFound, SettingError
from sonde.report.wording import moment

_DELIVERY_SECONDS: Final = 15.0
"""How long this waits for the last alerts before it ends."""


def watch(
    *paths: Annotated[Path, Parameter(negative=())],
    alert: tuple[str, ...] = (),
    every: float = 10.0,
    past: bool = False,
    until_done: bool = False,
    json: bool = False,
) -> None:
    """Watch runs and logs, and send an alert when something goes wrong.

    Works from outside: the training need not know about it. Reads whatever `sonde why` reads. A run
    that fails or is killed is reported too.

    Parameters
    ----------
    paths
        Runs, folders of runs, or logs that grow (default: `runs`).
    alert
        Where to send alerts: a URL of Slack, of Discord or of anything that takes JSON, or a
            command. May be repeated.
    every
        Seconds between two looks.
    past
        Also tell what happened before the first look.
    until_done
        End when no run is running any more.
    json
        Print every alert as one line of JSON.
    """
    watched = paths or (Path("runs"),)
    for path in watched:
        if not path.exists():
            raise RunNotFound(f"there is nothing at {path}", hint="give a run, a folder or a log")
    if not every > 0:
        raise SettingError(f"--every is {every}", hint="give a number of seconds above 0")
    alerts = Alerts(*alert) if alert else None
    console = screen()
    seen = Watch(watched, past=past)
    while True:
        for found in seen.look():
            if json:
                print(json_text(found.document()), end="", flush=True)
            else:
                _show(console, found)
            if alerts is not None:
                alerts.send(found)
        if until_done and not seen.is_anything_running:
            break
        time.sleep(every)
    if alerts is not None:
        alerts.wait(_DELIVERY_SECONDS)


def _show(console: Console, alert: Alert) -> None:
    head = Text.assemble(
        (f"{moment(alert.time)}  ", "dim"), (f"step {alert.step:,}  {alert.kind}", "bold red")
    )
    console.print(head)
    for sentence in (alert.title, alert.cause, alert.row):
        if sentence:
            print_indented(console, Text(sentence), 2)
    console.print(Text(f"  {alert.path}", style="cyan"), soft_wrap=True)
