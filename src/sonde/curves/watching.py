"""Watch runs and logs from outside: what is new since the last look, as alerts.

    watch = Watch([Path("runs")])
    watch.look()        what is new; the first look only learns what is there already

A run or log is read again only if its files have changed. What happened before the first look is
not new, unless `past` is set.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sonde.alerts.message import Alert
from sonde.curves.account import Account, read_accounts
from sonde.curves.judgement import Finding
from sonde.curves.recognise import find_run_directories
from sonde.errors import SondeError
from sonde.records.catalog import KILLED, run_status, summarise_run
from sonde.records.layout import RunLayout
from sonde.records.manifest import FAILED, RUNNING, read_manifest

ENDED_BADLY: Final = (FAILED, KILLED)


class Watch:
    """What was seen of some runs and logs so far."""

    def __init__(self, paths: Sequence[Path], *, past: bool = False) -> None:
        self._paths = list(paths)
        self._tells = past
        self._signatures: dict[Path, tuple[int, int]] = {}
        self._seen: set[tuple[str, str, str, int]] = set()
        self.statuses: dict[Path, str] = {}
        """The last known status of every run directory."""

    def look(self) -> list[Alert]:
        """Return alerts about everything new, oldest first."""
        alerts = []
        for path in self._paths:
            signature = _signature(path)
            if self._signatures.get(path) != signature:
                self._signatures[path] = signature
                alerts += self._new_events(path)
            alerts += self._ends(path)
        tells = self._tells
        self._tells = True
        return alerts if tells else []

    @property
    def is_anything_running(self) -> bool:
        """Whether any run directory was running at the last look."""
        return RUNNING in self.statuses.values()

    def _new_events(self, path: Path) -> list[Alert]:
        try:
            runs = read_accounts([path]).runs
        except (SondeError, OSError):
            return []  # nothing to read yet, or half written: the next look sees it
        alerts = []
        for run in runs:
            for finding in run.alarms:
                key = (str(run.path), run.name, "event", finding.first_step)
                if key not in self._seen:
                    self._seen.add(key)
                    alerts.append(
                        Alert(
                            step=finding.first_step,
                            kind=finding.kind,
                            title=finding.title,
                            cause=_cause_in_words(finding),
                            row=_row_in_words(finding),
                            path=_named(run),
                        )
                    )
        return alerts

    def _ends(self, path: Path) -> list[Alert]:
        """Return alerts about runs that failed or were killed since the last look."""
        alerts = []
        for run in find_run_directories(path):
            try:
                manifest = read_manifest(run)
                status = run_status(run, manifest)
            except (SondeError, OSError):
                continue
            before = self.statuses.get(run)
            self.statuses[run] = status
            if status in ENDED_BADLY and before not in ENDED_BADLY:
                title = _end(status, manifest.reason)
                alerts.append(
                    Alert(step=_last_step(run), kind=status, title=title, path=str(run.absolute()))
                )
        return alerts


def _cause_in_words(finding: Finding) -> str:
    """Return what an event probably is, worded as a guess if nobody has diagnosed it."""
    if not finding.probably:
        return ""
    sentence = finding.probably[0].sentence
    return sentence if finding.has_verdict else f"Probably: {sentence}"


def _row_in_words(finding: Finding) -> str:
    """Return the sentence about a sample beside the likeliest cause; empty if there is none."""
    for guess in finding.probably[1:]:
        if guess.names_sample:
            return guess.sentence
    return ""


def _named(run: Account) -> str:
    path = str(run.path.absolute())
    return f"{path} · {run.name}" if run.name else path


def _end(status: str, reason: str | None) -> str:
    """Return how a run ended, in a sentence."""
    if status == KILLED:
        return "The run was killed: its process is gone."
    return f"The run failed: {reason}." if reason else "The run failed."


def _last_step(run: Path) -> int:
    step = summarise_run(run).last_step
    return step if isinstance(step, int) else 0


def _signature(path: Path) -> tuple[int, int]:
    """Return a number of bytes and a time that change whenever a file at or below a path does."""
    files = [path] if path.is_file() else _record_files(path)
    num_bytes = 0
    newest = 0
    for file in files:
        try:
            found = os.stat(file)
        except OSError:
            continue
        num_bytes += found.st_size
        newest = max(newest, found.st_mtime_ns)
    return num_bytes, newest


def _record_files(path: Path) -> list[Path]:
    runs = find_run_directories(path)
    if not runs:
        return [entry for entry in sorted(path.rglob("*")) if entry.is_file()]
    found = []
    for run in runs:
        layout = RunLayout(run)
        found += [file.path for file in layout.record_files()]
        found += [verdict for _, verdict in layout.verdicts()]
    return found
