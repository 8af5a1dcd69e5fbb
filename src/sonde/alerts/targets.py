"""Where alerts go: a webhook (Slack, Discord, or any URL that takes JSON), a command, a function.

A target is a function that takes an alert. It may block and it may raise: `sender.py` calls it from
a thread of its own.
"""

import json
import os
import re
import shlex
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from sonde.alerts.message import Alert
from sonde.errors import SettingError

_SECONDS: Final = 10.0
"""How long a webhook or a command may take."""
_SLACK: Final = re.compile(r"(?:.+\.)?slack(?:-gov)?\.com")
_DISCORD: Final = re.compile(r"(?:.+\.)?discord(?:app)?\.com")
_MAX_DISCORD: Final = 2000
_MAX_ANSWER: Final = 1 << 10

Deliver: TypeAlias = Callable[[Alert], object]
TargetLike: TypeAlias = "str | Deliver | Target"
"""A URL, a command, or a function that takes an alert."""


class Target(NamedTuple):
    """Something that takes alerts."""

    name: str
    """What messages call it; never an address."""
    deliver: Deliver


def target_of(value: TargetLike) -> Target:
    """Return the target that a user means: a URL, a command, or a function."""
    if isinstance(value, Target):
        return value
    if not isinstance(value, str) and not callable(value):
        raise SettingError(f"an alert goes to a URL, a command or a function, not to {value!r:.80}")
    if callable(value):
        return Target(f"the function {getattr(value, '__name__', 'given')}", value)
    return webhook(value) if re.match(r"\w+://", value) else command(value)


def webhook(url: str, *, seconds: float = _SECONDS) -> Target:
    """Return a target that posts to a URL: in Slack's or Discord's form if it is theirs, otherwise
    as JSON.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(
            f"a webhook is an address with http or https, not {parts.scheme or 'nothing'}://…",
            hint="https://hooks.slack.com/services/…",
        )
    form = form_of(parts.hostname)

    def deliver(alert: Alert) -> None:
        payload = json.dumps(form(alert)).encode()
        request = urllib.request.Request(  # noqa: S310  http or https, as checked above
            url,
            data=payload,
            headers={"Content-Type": "application/json", "User-Agent": "sonde"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310  as above
            answer.read(_MAX_ANSWER)

    return Target(f"the webhook at {parts.hostname}", deliver)


def form_of(host: str) -> Callable[[Alert], Mapping[str, Any]]:
    """Return the function that makes the body of a message for a host."""
    if _SLACK.fullmatch(host):
        return slack_body
    return discord_body if _DISCORD.fullmatch(host) else plain_body


def slack_body(alert: Alert) -> dict[str, Any]:
    """Return the body for Slack, in which three characters are markup."""
    text = alert.text()
    for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escaped)
    return {"text": text}


def discord_body(alert: Alert) -> dict[str, Any]:
    """Return the body for Discord. A row that contains `@everyone` calls nobody."""
    text = alert.text()[:_MAX_DISCORD]
    return {"content": text, "allowed_mentions": {"parse": []}}


def plain_body(alert: Alert) -> dict[str, Any]:
    """Return the body for anybody else (docs/formats/alert.md)."""
    return alert.document()


def command(line: str, *, seconds: float = _SECONDS) -> Target:
    """Return a target that runs a command, without a shell. It gets the text in SONDE_ALERT and the
    document on standard input.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise SettingError(f"{line!r} is no command", cause=str(error)) from None
    if not words:
        raise SettingError("an empty command cannot be run", hint="give a URL or a command")

    def deliver(alert: Alert) -> None:
        document = alert.document()
        subprocess.run(
            words,
            input=json.dumps(document).encode(),
            env={**os.environ, "SONDE_ALERT": document["text"]},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )

    return Target(f"the command {words[0]}", deliver)
