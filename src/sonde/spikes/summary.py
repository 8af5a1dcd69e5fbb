"""What decoding saw: how much was written, what was left out and why."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, final

_MAX_KEPT: Final = 1000


class BadEntry(NamedTuple):
    """A line, or a sample of one, that could not be used."""

    path: Path
    line: int
    """Counted from 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@final
@dataclass(slots=True)
class DecodeSummary:
    """The outcome of one decoding."""

    result: Path
    """The file that was written."""
    num_lines: int = 0
    """Lines that could be read."""
    num_below: int = 0
    """Of those, lines below the least iteration or loss."""
    num_samples: int = 0
    """Samples written to the result."""
    num_bad: int = 0
    """Lines and samples left out because something was wrong with them."""
    bad: list[BadEntry] = field(default_factory=list)
    """The first thousand of them."""

    def note_bad(self, path: Path, line: int, reason: str) -> None:
        """Count something that had to be left out."""
        self.num_bad += 1
        if len(self.bad) < _MAX_KEPT:
            self.bad.append(BadEntry(path, line, reason))
