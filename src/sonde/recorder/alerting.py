"""Alerts about the events of a recorded training, for functions, commands and webhooks that the
user gave as `on_event`. Sent by rank 0 from a thread that cannot raise, block or keep the process
(alerts/sender.py).
"""

from collections.abc import Sequence

from sonde.alerts.message import Alert, alert_of_event
from sonde.alerts.sender import Alerts
from sonde.alerts.targets import TargetLike
from sonde.forensics.verdict import Verdict
from sonde.run import Run
from sonde.spikes.detectors import Event
from sonde.spikes.quiet_rules import QuietFinding


class EventAlerts:
    """Sends what happens in one training; does nothing without targets."""

    def __init__(self, run: Run, targets: Sequence[TargetLike]) -> None:
        self._path = str(run.directory.absolute())
        self._alerts: Alerts | None = None
        if targets and run.rank == 0 and not run.is_replay:
            self._alerts = Alerts(*targets)

    def event(self, event: Event, verdict: Verdict) -> None:
        """Tell of an event and its first verdict."""
        if self._alerts is not None:
            self._alerts.send(alert_of_event(self._path, event, verdict))

    def sample(self, jump: str, verdict: Verdict) -> None:
        """Tell of a sample that stands out."""
        if self._alerts is not None:
            first = verdict.causes[0]
            row = first.suspects[0].text if first.suspects else ""
            cause = f"{first.title.removesuffix('.')} ({first.confidence:.0%})"
            title = f"{jump[0].upper()}{jump[1:]}."
            self._send(verdict.step, "sample", title, cause, row)

    def quiet(self, finding: QuietFinding) -> None:
        """Tell of a failure without a jump."""
        if self._alerts is not None:
            title = f"{finding.sentence[0].upper()}{finding.sentence[1:]}."
            self._send(finding.step, finding.kind, title, f"look at {finding.look_at}", "")

    def _send(self, step: int, kind: str, title: str, cause: str, row: str) -> None:
        assert self._alerts is not None
        self._alerts.send(
            Alert(step=step, kind=kind, title=title, cause=cause, row=row, path=self._path)
        )
