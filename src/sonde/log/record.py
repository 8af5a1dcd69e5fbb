"""`LogRecord`: one record as the reader gives it, whatever wrote it."""

from typing import Any, final

import msgspec


@final
class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was logged, where in the training, when and by which rank."""

    type: str
    """`LOG`, `METADATA` or `INFO`."""
    step: Any = None
    """As it was given: a number, a list of them, a name; None for METADATA and INFO."""
    data: Any = None
    """LOG: the values by name. INFO: what was given. METADATA: what is said of the metric."""
    metric: str | None = None
    """METADATA: which metric it is about."""
    rank: int = 0
    timestamp: float | None = None
    """Seconds since the epoch; from `datetime` where the writer gave no timestamp (TCAP's INFO)."""
    elapsedtime: float | None = None
    """Seconds since the logger started; None where the writer does not say."""
    datetime: str | None = None
    """As the writer spelled it."""
