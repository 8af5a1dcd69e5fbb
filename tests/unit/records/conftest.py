"""Fixtures of the index."""

from pathlib import Path

import pytest

from sonde.records import index_database, reader
from sonde.records.layout import RunLayout


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_database, "CHUNK_RECORDS", 4)
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 1)  # a block holds whole lines: here one
