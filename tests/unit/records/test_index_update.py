"""The index follows its record files: growing, torn, truncated, replaced, deleted, and refreshed by
many at once.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from indexed_run import log, refreshed, write, write_raw

from sonde.records import index_database, reader
from sonde.records.append import RecordFile
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.reader import LineScanner


def num_chunks(layout: RunLayout) -> int:
    with contextlib.closing(sqlite3.connect(layout.index)) as connection:
        return int(
            connection.execute("SELECT count(*) FROM columns WHERE name = 'about'").fetchone()[0]
        )


@pytest.mark.usefixtures("small_chunks")
def test_refresh_reads_only_from_the_last_chunk(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    read_chunks = index_database.read_chunks

    def noted(scanner: LineScanner, stream: BinaryIO) -> Iterator[index_database.Chunk]:
        starts.append(scanner.offset)
        return read_chunks(scanner, stream)

    monkeypatch.setattr(index_database, "read_chunks", noted)
    line = b'{"step":1,"data":{"x":1}}\n'
    with RunIndex(layout) as index:
        for num_lines in (3, 2, 3, 0, 1):
            write_raw(layout, line * num_lines)
            index.refresh()
        assert starts == [0, 0, 4 * len(line), 4 * len(line)]
        assert index.num_records() == 9
    assert num_chunks(layout) == 3


@pytest.mark.usefixtures("small_chunks")
def test_many_small_refreshes_leave_few_chunks(layout: RunLayout) -> None:
    with RunIndex(layout) as index:
        for step in range(30):
            write(layout, log(step, loss=step))
            index.refresh()
        assert index.series("loss").values.tolist() == list(range(30))
    assert num_chunks(layout) == 8


def test_a_chunk_of_long_records_ends_early(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_database, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 1)
    write(layout, *(log(step, loss=step, text="x" * 600) for step in range(10)))
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == list(range(10))
    assert num_chunks(layout) == 5


def test_more_chunks_than_a_transaction_holds_are_all_indexed(
    layout: RunLayout, small_chunks: None
) -> None:
    write(layout, *(log(step, loss=step / 3, text="x" * 40_000) for step in range(100)))
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == [step / 3 for step in range(100)]


def test_a_torn_line_waits_until_it_is_whole(layout: RunLayout) -> None:
    write(layout, log(1, loss=1.0))
    write_raw(layout, b'{"step":2,"data":{"loss"')
    with refreshed(layout) as index:
        assert (index.num_records(), index.num_bad()) == (1, 0)
        write_raw(layout, b":2}}\n")
        index.refresh()
        assert index.series("loss").values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "new", [b"", b'{"step":9,"data":{"loss":9}}\n', b'{"step":1,"data":{"loss":7}}\n' * 5]
)
def test_a_file_that_was_truncated_or_replaced_is_indexed_anew(
    layout: RunLayout, new: bytes
) -> None:
    write_raw(layout, b'{"step":1,"data":{"loss":1}}\n' * 3)
    with refreshed(layout) as index:
        layout.record_file("log", 0).write_bytes(new)
        index.refresh()
        assert (
            index.series("loss").values.tolist()
            == {0: [], 1: [9.0], 5: [7.0] * 5}[new.count(b"\n")]
        )
        assert index.num_records() == new.count(b"\n")


def test_a_large_file_that_was_replaced_is_known_by_its_end(layout: RunLayout) -> None:
    head = b'{"step":1,"data":{"loss":1}}\n' * 1000
    write_raw(layout, head)
    with refreshed(layout) as index:
        layout.record_file("log", 0).write_bytes(head[:-29] + b'{"step":1,"data":{"loss":2}}\n' * 2)
        index.refresh()
        assert index.series("loss").values[-2:].tolist() == [2.0, 2.0]
        assert index.num_records() == 1001


def test_a_deleted_file_vanishes_from_the_index(layout: RunLayout) -> None:
    write(layout, log(1, loss=1.0))
    write(layout, log(1, loss=1.0), rank=1)
    with refreshed(layout) as index:
        layout.record_file("log", 0).unlink()
        index.refresh()
        assert index.metrics() == {"loss": 1}
        assert (index.num_records(rank=0), index.num_records(rank=1)) == (0, 1)


def test_a_file_deleted_while_it_is_indexed_is_no_error(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, log(1, loss=1.0))
    files = layout.record_files()
    layout.record_file("log", 0).unlink()
    monkeypatch.setattr(RunLayout, "record_files", lambda *_: files)
    with refreshed(layout) as index:
        assert index.num_records() == 0


def test_a_copied_run_keeps_its_index(
    layout: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, log(1, loss=1.0))
    with refreshed(layout):
        pass
    copy = RunLayout(tmp_path / "copy")
    copy.records.mkdir(parents=True)
    copy.index.write_bytes(layout.index.read_bytes())
    copy.record_file("log", 0).write_bytes(layout.record_file("log", 0).read_bytes())
    monkeypatch.delattr(index_database, "read_chunks")  # so that indexing any line would fail
    with refreshed(copy) as index:
        assert index.records_at_step("log", 1) == [log(1, loss=1.0)]


def test_an_open_index_sees_what_another_one_refreshed(layout: RunLayout) -> None:
    with refreshed(layout) as mine, RunIndex(layout) as other:
        write(layout, log(1, loss=1.0))
        other.refresh()
        assert mine.num_records() == 1


def test_a_refresh_that_another_one_overtook_goes_on_from_there(
    layout: RunLayout, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(layout, *(log(step, loss=step) for step in range(10)))
    others = [RunIndex(layout)]

    read_chunks = index_database.read_chunks

    def overtaken(scanner: LineScanner, stream: BinaryIO) -> Iterator[index_database.Chunk]:
        chunks = list(read_chunks(scanner, stream))
        if others:
            with others.pop() as other:
                other.refresh()
        return iter(chunks)

    monkeypatch.setattr(index_database, "read_chunks", overtaken)
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == list(range(10))
    assert others == []
    assert num_chunks(layout) == 3


@pytest.mark.slow
def test_processes_that_refresh_a_growing_run_at_once_all_succeed(layout: RunLayout) -> None:
    program = """
import sys
import time
from pathlib import Path
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
with RunIndex(RunLayout(Path(sys.argv[1]))) as index:
    while index.num_records() < 20000:
        index.refresh()
        values = index.series("loss").values
        assert values.tolist() == list(range(len(values)))
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(layout.root)]) for _ in range(3)
    ]
    with RecordFile(layout.record_file("log", 0)) as file:
        for step in range(20_000):
            file.append(log(step, loss=step))
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with refreshed(layout) as index:
        assert index.num_records() == 20_000
    assert num_chunks(layout) == 2


@pytest.mark.slow
def test_an_indexer_that_was_killed_leaves_an_index_to_go_on_from(layout: RunLayout) -> None:
    write_raw(
        layout,
        b"".join(b'{"step":%d,"data":{"loss":%d}}\n' % (step, step) for step in range(200_000)),
    )
    program = """
import sys
import time
from pathlib import Path
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
with RunIndex(RunLayout(Path(sys.argv[1]))) as index:
    print("begins", flush=True)
    index.refresh()
"""
    for turn in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(layout.root)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begins\n"
            time.sleep(0.1 + 0.15 * turn)
            process.kill()
    with refreshed(layout) as index:
        series = index.series("loss")
        assert len(series.values) == 200_000
        assert (series.values == series.steps).all()
        # the file itself: no one had to fall back to memory
        assert layout.index.stat().st_size > 200_000 * 16


def test_a_file_that_was_mended_in_its_middle_is_indexed_again(layout: RunLayout) -> None:
    write(layout, *(log(step, loss=float(step)) for step in range(400)))
    path = layout.record_file("log", 0)
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    path.write_bytes(damaged)
    with refreshed(layout) as index:
        assert index.num_bad() == 1
        path.write_bytes(good)
        os.utime(path, ns=(1, 1))  # a clock may be coarser than this test
        index.refresh()
        assert index.num_bad() == 0
        assert index.series("loss").values.tolist() == list(range(400))
