"""What was planted beside what was named: `verdict.json` of the demo, and whether they are the same."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from sonde.demo.plant import CAUSE, Planted
from sonde.forensics.verdict import Cause, Suspect, Verdict
from sonde.records.atomic import write_file
from sonde.records.values import encode


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """The first cause of a verdict, and the document that it points at."""

    step: int
    """The step it is about."""
    cause: str
    """Which cause."""
    confidence: float
    """How sure."""
    title: str
    """In a sentence."""
    sample: int | None
    """The worst sample it points at; None when it points at none."""
    file: str
    """The text file it came from."""
    line: int | None
    """The line there, from 1."""
    text: str
    """How it begins."""


def named_by(verdict: Verdict) -> Named:
    """What a verdict names first."""
    cause: Cause = verdict.causes[0]
    suspect: Suspect | None = cause.suspects[0] if cause.suspects else None
    return Named(
        step=verdict.step,
        cause=cause.cause,
        confidence=cause.confidence,
        title=cause.title,
        sample=suspect.sample if suspect else None,
        file=suspect.file if suspect else "",
        line=suspect.line if suspect else None,
        text=suspect.text if suspect else "",
    )


def is_planted(planted: Planted, named: Named) -> bool:
    """Is it the document that was planted, and what was done to it?"""
    same_document = named.line == planted.line and Path(named.file).name == Path(planted.file).name
    return same_document and named.cause == CAUSE


def write_naming(path: Path, planted: Planted, named: Named) -> None:
    """Both, side by side."""
    document = {"planted": asdict(planted), "named": asdict(named), "equal": is_planted(planted, named)}
    write_file(path.absolute(), encode(document))
