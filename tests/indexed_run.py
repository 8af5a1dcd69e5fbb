"""A run with records, and its index brought up to date: what the tests of the index write and look
at.
"""

import contextlib
from collections.abc import Iterator

from sonde.records.append import RecordFile
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout


@contextlib.contextmanager
def refreshed(layout: RunLayout) -> Iterator[RunIndex]:
    """The index of a run, up to date."""
    with RunIndex(layout) as index:
        index.refresh()
        yield index


def write(layout: RunLayout, *records: object, kind: str = "log", rank: int = 0) -> None:
    """Append records to one of the run's files."""
    with RecordFile(layout.record_file(kind, rank)) as file:
        assert file.append_many(records)


def write_raw(layout: RunLayout, text: bytes, kind: str = "log", rank: int = 0) -> None:
    """Append bytes as they are."""
    layout.records.mkdir(exist_ok=True)
    with layout.record_file(kind, rank).open("ab") as file:
        file.write(text)


def log(step: object, **data: object) -> dict[str, object]:
    """A LOG record."""
    return {"timestamp": "1.5", "type": "LOG", "step": step, "rank": 0, "data": data}
