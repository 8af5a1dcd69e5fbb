"""Whatever happened to index.sqlite, the index answers: rebuilt, or kept in memory where it cannot
be written.
"""

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sonde.records.append import RecordFile
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@contextlib.contextmanager
def refreshed(layout: RunLayout) -> Iterator[RunIndex]:
    with RunIndex(layout) as index:
        index.refresh()
        yield index


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions do not hold root back: be nobody for a while."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def write(layout: RunLayout, *records: object, kind: str = "log", rank: int = 0) -> None:
    with RecordFile(layout.record_file(kind, rank)) as file:
        assert file.append_many(records)


def log(step: object, **data: object) -> dict[str, object]:
    return {"timestamp": "1.5", "type": "LOG", "step": step, "rank": 0, "data": data}


def num_chunks(layout: RunLayout) -> int:
    with contextlib.closing(sqlite3.connect(layout.index)) as connection:
        return int(
            connection.execute("SELECT count(*) FROM columns WHERE name = 'about'").fetchone()[0]
        )


def make_garbage(path: Path) -> None:
    path.write_bytes(os.urandom(10_000))


def make_foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE files (anything TEXT)")


def make_older(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE marks (chunk INTEGER)")


def make_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [make_garbage, make_older, make_cut, make_empty], ids=lambda damage: damage.__name__
)
def test_an_index_that_cannot_be_used_is_rebuilt(
    layout: RunLayout, damage: Callable[[Path], None]
) -> None:
    write(layout, log(1, loss=1.0))
    with refreshed(layout):
        pass
    damage(layout.index)
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == [1.0]
    assert num_chunks(layout) == 1


def test_a_foreign_database_is_replaced(layout: RunLayout) -> None:
    make_foreign(layout.index)
    write(layout, log(1, loss=1.0))
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == [1.0]
    assert num_chunks(layout) == 1


def test_an_index_damaged_while_it_is_open_answers_all_the_same(layout: RunLayout) -> None:
    write(layout, *(log(step, loss=step) for step in range(5000)))
    with refreshed(layout):
        pass
    with RunIndex(layout) as index:
        first_page = 16384  # which holds the schema: damage there is seen when opening
        size = layout.index.stat().st_size
        with layout.index.open("r+b") as file:
            file.seek(first_page)
            file.write(b"\xff" * (size - first_page))
        assert index.series("loss").values.tolist() == list(range(5000))
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == list(range(5000))
    assert num_chunks(layout) == 1


def test_an_index_whose_name_is_taken_is_kept_in_memory(layout: RunLayout) -> None:
    layout.index.mkdir()
    write(layout, log(1, loss=1.0))
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == [1.0]
    assert layout.index.is_dir()


def test_a_full_disk_leaves_the_index_in_memory(layout: RunLayout) -> None:
    write(layout, *(log(step, loss=step) for step in range(5000)))
    with RunIndex(layout) as index:
        pages = index._connection.execute("PRAGMA page_count").fetchone()[0]
        index._connection.execute(f"PRAGMA max_page_count = {pages}")
        index.refresh()
        assert index.series("loss").values.tolist() == list(range(5000))
    assert num_chunks(layout) == 0


def test_a_read_only_run_is_answered_from_its_index_and_from_memory_when_that_is_old() -> None:
    with tempfile.TemporaryDirectory() as directory:
        layout = RunLayout(Path(directory))
        write(layout, log(1, loss=1.0))
        with refreshed(layout):
            pass
        Path(directory).chmod(0o555)
        layout.index.chmod(0o444)
        layout.records.chmod(0o755)
        before = layout.index.read_bytes()
        with unprivileged(), RunIndex(layout) as index:
            index.refresh()
            assert index.series("loss").values.tolist() == [1.0]
        write(layout, log(2, loss=2.0))
        with unprivileged(), RunIndex(layout) as index:
            index.refresh()
            assert index.series("loss").values.tolist() == [1.0, 2.0]
        Path(directory).chmod(0o755)
        assert layout.index.read_bytes() == before


def test_a_read_only_run_without_an_index_is_indexed_in_memory() -> None:
    with tempfile.TemporaryDirectory() as directory:
        layout = RunLayout(Path(directory))
        write(layout, log(1, loss=1.0))
        Path(directory).chmod(0o555)
        with unprivileged(), refreshed(layout) as index:
            assert index.series("loss").values.tolist() == [1.0]
        Path(directory).chmod(0o755)
        assert not layout.index.exists()


def test_a_closed_index_says_so(layout: RunLayout) -> None:
    write(layout, log(1, loss=1.0))
    index = RunIndex(layout)
    index.close()
    with pytest.raises(sqlite3.ProgrammingError):
        index.metrics()


def test_a_run_that_is_not_there_is_empty_and_nothing_is_made(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "no such run")
    with refreshed(layout) as index:
        assert index.num_records() == 0
    assert not layout.root.exists()
