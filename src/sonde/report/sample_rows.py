"""The samples that were worst over all epochs, as rows of a table: for the page and for Markdown."""

from collections.abc import Iterable
from typing import Final

from sonde.report import wording
from sonde.spikes.worst import WorstSample

TITLE: Final = "Worst samples"
NOTE: Final = "Mean and last: how many deviations a sample's loss was above that of samples of its length."
COLUMNS: Final = ("mean", "last", "times seen", "trend", "sample", "same text", "text")
NUMBERS: Final = ("mean", "last", "times seen", "same text")
_MAX_TEXT: Final = 160


def sample_rows(worst: Iterable[WorstSample]) -> list[list[str]]:
    """A row a sample, under `COLUMNS`."""
    rows = []
    for entry in worst:
        history, text = entry.history, " ".join(entry.decoded.text.split())
        rows.append(
            [
                f"{history.mean:.1f}",
                f"{history.last:.1f}",
                wording.number(history.count),
                history.trend,
                f"{history.dataset} {history.sample}".strip(),
                f"+{len(entry.duplicates)}" if entry.duplicates else "",
                wording.shortened(text, _MAX_TEXT) or entry.decoded.problem,
            ]
        )
    return rows
