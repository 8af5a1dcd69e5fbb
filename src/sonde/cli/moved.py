"""The flags --data and --checkpoints, shared by every verb that needs the data or the checkpoints of a run."""

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Moved:
    """Current locations of a run's data and checkpoints."""

    data: Path | None = None
    """Current location of the run's data directory, if it has moved."""
    checkpoints: str | None = None
    """Folder or URL of the checkpoints, if they are not where the run recorded them."""
