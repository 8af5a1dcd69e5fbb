"""`Alert`: what is told about an event, as text and as data (docs/formats/alert.md). Pure."""

import math
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sonde.data.skip_list import sample_name
from sonde.forensics.verdict import NOTHING, UNKNOWN, Cause, Verdict
from sonde.spikes.detectors import Event

FORMAT: Final = "sonde-alert"
VERSION: Final = 1
_MAX_ROW: Final = 160


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One event as a message: what happened, why, and where."""

    step: int
    """The step of the event."""
    kind: str
    """What it is: `spike`, `jump`, `divergence`, `nonfinite`; `sample` for one that stands out
    while the mean is as usual; the kind of a quiet failure, such as `no_rate`; from outside, the
    kind of a finding (curves/judgement.py), or what ended a run: `failed`, `killed`.
    """
    title: str
    """What happened, in a sentence."""
    cause: str = ""
    """Why, as far as it is known."""
    row: str = ""
    """The first suspect and the beginning of its text, if there is one."""
    path: str = ""
    """The run directory or log."""
    host: str = field(default_factory=socket.gethostname)
    """The machine that noticed it."""
    time: float = field(default_factory=time.time)
    """When it was noticed, as Unix time in seconds."""

    num_held_back: int = 0
    """The number of alerts that were not sent since the last one, because there were too many."""
    mlflow_run: str = ""
    """The MLflow run that the script had open. It is in no message."""

    def text(self) -> str:
        """Return the alert as a few lines of plain text."""
        lines = [f"sonde: step {self.step:,}, {self.kind}. {self.title}"]
        if self.cause:
            lines.append(f"cause: {self.cause}")
        if self.row:
            lines.append(f"row: {self.row}")
        if self.path:
            lines.append(f"run: {self.path} on {self.host}")
        if self.num_held_back:
            lines.append(f"({self.num_held_back:,} more were held back since the last message)")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return the alert as plain data, the text included."""
        fields = asdict(self)
        del fields["mlflow_run"]
        return {"format": FORMAT, "version": VERSION, **fields, "text": self.text()}


def alert_of_event(run: str | Path, event: Event, verdict: Verdict | None = None) -> Alert:
    """Return the alert about an event of a run, with the verdict about it if there is one."""
    cause = _likeliest(verdict)
    return Alert(
        step=event.first_step,
        kind=event.kind,
        title=_title(event),
        cause="" if cause is None else f"{cause.title.rstrip('.')} ({cause.confidence:.0%})",
        row="" if cause is None else _row(cause),
        path=str(Path(run).absolute()),
    )


def _likeliest(verdict: Verdict | None) -> Cause | None:
    if verdict is None or verdict.causes[0].cause in (NOTHING, UNKNOWN):
        return None
    return verdict.causes[0]


def _title(event: Event) -> str:
    metric = event.metric.replace("_", " ")
    expected = "" if math.isnan(event.baseline) else f", expected {event.baseline:.4g}"
    return f"The {metric} is {event.value:.4g}{expected}."


def _row(cause: Cause) -> str:
    """Return the first suspect: its name, where it is, and how its text begins."""
    if not cause.suspects:
        return ""
    suspect = cause.suspects[0]
    place = suspect.file if suspect.line is None else f"{suspect.file}:{suspect.line}"
    words = " ".join(suspect.text.split())[:_MAX_ROW]
    parts = [sample_name(suspect.dataset, suspect.sample), place, repr(words) if words else ""]
    return ", ".join(part for part in parts if part)
