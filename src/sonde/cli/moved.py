"""Where the data and the checkpoints of a run are now: two flags of every verb that needs them."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from cyclopts import Parameter


@Parameter(name="*")
@final
@dataclass(frozen=True, kw_only=True)
class Moved:
    """Where things are now."""

    data: Path | None = None
    """Where the run's data directory is now, if it has moved."""
    checkpoints: str | None = None
    """Where the run's checkpoints are now, if not where the run says: a folder or a URL."""
