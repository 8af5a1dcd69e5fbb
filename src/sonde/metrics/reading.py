"""`Readings`: the small interface through which a trainer, a logger or a callback reads an aggregator.

Whoever only reads should ask for this and nothing more; an `Aggregator`, and what `over_ranks` returns, fit it.
"""

from typing import Protocol


class Readings(Protocol):
    """Named numbers, as of now."""

    @property
    def name(self) -> str | None:
        """What the aggregator is called; None for an anonymous one."""

    def get_smoothed_value(self, key: str) -> float:
        """One number, rounded for display; NaN when it has no data, SettingError when nobody logs it."""

    def get_smoothed_values(self) -> dict[str, float]:
        """All numbers to show, in display order; `<key>_nonfinite` follows a key that has met NaN or infinities."""
