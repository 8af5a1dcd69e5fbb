"""The index answers as a plain reading of the record files would, whatever happened to them and to it."""

import contextlib
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from sonde.records import index_chunk, index_update
from sonde.records.append import RecordFile
from sonde.records.index import RunIndex
from sonde.records.index_chunk import NO_STEP
from sonde.records.layout import RunLayout
from sonde.records.reader import LineScanner


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_chunk, "CHUNK_RECORDS", 4)


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


def write_raw(layout: RunLayout, text: bytes, kind: str = "log", rank: int = 0) -> None:
    layout.records.mkdir(exist_ok=True)
    with layout.record_file(kind, rank).open("ab") as file:
        file.write(text)


def log(step: object, **data: object) -> dict[str, object]:
    return {"timestamp": "1.5", "type": "LOG", "step": step, "rank": 0, "data": data}


def num_chunks(layout: RunLayout) -> int:
    with contextlib.closing(sqlite3.connect(layout.index)) as connection:
        return int(connection.execute("SELECT count(*) FROM chunks").fetchone()[0])


def test_a_series_holds_steps_and_values_in_the_order_written(layout: RunLayout) -> None:
    write(layout, log(1, loss=0.5, lr=1), log(2, loss=0.25, lr=1), log(5, loss=0.125, lr=1))
    with refreshed(layout) as index:
        loss = index.series("loss")
        assert loss.steps.tolist() == [1, 2, 5]
        assert loss.values.tolist() == [0.5, 0.25, 0.125]
        assert loss.steps.dtype == np.int64
        assert loss.values.dtype == np.float64


def test_an_unknown_metric_is_an_empty_series(layout: RunLayout) -> None:
    write(layout, log(1, loss=0.5))
    with refreshed(layout) as index:
        assert index.series("accuracy").values.tolist() == []
        assert index.series("loss", rank=1).steps.tolist() == []
        assert index.metrics("spikes") == {}


def test_a_run_without_records_has_an_empty_index(layout: RunLayout) -> None:
    with refreshed(layout) as index:
        assert index.metrics() == {}
        assert index.last_step() is None
        assert index.num_records() == 0
        assert index.entries("log") == []


def test_a_metric_that_only_some_records_hold_keeps_its_own_steps(layout: RunLayout) -> None:
    write(layout, log(1, loss=1.0), log(2, loss=2.0, accuracy=0.5), log(3), log(4, accuracy=0.75, loss=4.0))
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == [1, 2, 4]
        assert index.series("accuracy").steps.tolist() == [2, 4]
        assert index.series("accuracy").values.tolist() == [0.5, 0.75]
        assert index.metrics() == {"accuracy": 2, "loss": 3}


def test_nested_keys_are_joined_with_dots(layout: RunLayout) -> None:
    write(layout, log(1, eval={"loss": 1.0, "by_length": {"short": 2.0}}), log(2, eval=7.0))
    with refreshed(layout) as index:
        assert index.metrics() == {"eval": 1, "eval.by_length.short": 1, "eval.loss": 1}
        assert index.series("eval.by_length.short").values.tolist() == [2.0]
        assert index.series("eval").steps.tolist() == [2]


def test_of_a_name_that_occurs_twice_in_a_record_the_later_counts(layout: RunLayout) -> None:
    write_raw(layout, b'{"step":1,"data":{"a.b":1,"a":{"b":2}}}\n{"step":2,"data":{"a":{"b":3},"a.b":4}}\n')
    with refreshed(layout) as index:
        assert index.series("a.b").values.tolist() == [2.0, 4.0]


def test_numbers_of_all_spellings_are_values_and_the_rest_is_not(layout: RunLayout) -> None:
    values = [True, False, 3, 2**70, math.nan, math.inf, -math.inf, "NaN", "1.5", None, [1.0], b"x", 1e300]
    write(layout, *(log(step, x=value) for step, value in enumerate(values)))
    with refreshed(layout) as index:
        series = index.series("x")
        assert series.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 12]
        np.testing.assert_array_equal(
            series.values, [1.0, 0.0, 3.0, float(2**70), math.nan, math.inf, -math.inf, 1e300]
        )


def test_objects_nested_too_deeply_are_no_metrics(layout: RunLayout) -> None:
    write_raw(layout, b'{"data":{"x":1,"deep":' + b'{"a":' * 900 + b"1" + b"}" * 902 + b"\n")
    with refreshed(layout) as index:
        assert index.metrics() == {"x": 1}
        assert index.num_records() == 1


def test_lists_of_numbers_are_steps(layout: RunLayout) -> None:
    write(layout, log([0, 1], loss=1.0), log([0, 2, 9], loss=2.0), log(3, loss=3.0), log([1, 2, 3, 4], loss=4.0))
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == [
            [0, 1, NO_STEP],
            [0, 2, 9],
            [3, NO_STEP, NO_STEP],
            [NO_STEP] * 3,
        ]
        assert [entry.offset for entry in index.records_at_step("log", [0, 1])] == [0]
        assert index.records_at_step("log", [0, 2]) == []
        assert len(index.records_at_step("log", (0, 2, 9))) == 1
        assert len(index.records_at_step("log", 3)) == 1
        assert index.last_step() == 3


@pytest.mark.usefixtures("small_chunks")
def test_steps_of_different_width_meet_in_one_series(layout: RunLayout) -> None:
    write(layout, *(log(step, loss=1.0) for step in range(4)), log([1, 5], loss=2.0))
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == [*([step, NO_STEP] for step in range(4)), [1, 5]]
        assert index.last_step() == (1, 5)
        assert index.records_at_step("log", [2, 3]) == []


def test_records_without_a_numeric_step_have_none(layout: RunLayout) -> None:
    write(layout, log(None, x=1), log("end", x=2), log(2**64, x=3), log(7.0, x=4), log(7.5, x=5), {"data": {"x": 6}})
    with refreshed(layout) as index:
        assert index.series("x").steps.tolist() == [NO_STEP, NO_STEP, NO_STEP, 7, NO_STEP, NO_STEP]
        assert [entry.step for entry in index.entries("log")] == [None, "end", None, 7, None, None]
        assert index.last_step() == 7


@pytest.mark.parametrize(
    "steps", [[5], [3, 3, 3], [0, 10, 20, 30], [3, 2, 1], [1, 2, 4], [-5, 0, 5], [1 - 2**63, 2**63 - 1], [0, 1, 1, 3]]
)
def test_steps_come_back_whether_they_rise_evenly_or_not(layout: RunLayout, steps: list[int]) -> None:
    write(layout, *(log(step, loss=1.0) for step in steps))
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == steps
        assert len(index.records_at_step("log", steps[0])) == steps.count(steps[0])


def test_entries_say_where_records_stand_and_what_they_are(layout: RunLayout) -> None:
    write(layout, {"type": "SPIKE", "step": 7, "loss": 9.5}, {"type": "SPIKE", "step": 9}, {"step": 8}, kind="spikes")
    write(layout, {"type": "SPIKE", "step": 7}, kind="spikes", rank=3)
    with refreshed(layout) as index:
        entries = index.entries("spikes")
        assert [(entry.rank, entry.type, entry.step) for entry in entries] == [
            (0, "SPIKE", 7),
            (0, "SPIKE", 9),
            (0, None, 8),
            (3, "SPIKE", 7),
        ]
        assert index.read(entries[0]) == {"type": "SPIKE", "step": 7, "loss": 9.5}
        assert [entry.rank for entry in index.records_at_step("spikes", 7)] == [0, 3]
        assert [entry.path for entry in index.records_at_step("spikes", 7, rank=3)] == [layout.record_file("spikes", 3)]
        assert [entry.step for entry in index.entries("spikes", type="SPIKE", rank=0)] == [7, 9]
        assert index.entries("log") == []


@pytest.mark.usefixtures("small_chunks")
def test_rare_types_are_found_among_many_records(layout: RunLayout) -> None:
    write(layout, {"type": "METADATA", "metric": "loss"}, *(log(step, loss=1.0) for step in range(20)))
    write(layout, {"type": "GAP", "num_lost": 3}, log("summary", loss=0.5))
    with refreshed(layout) as index:
        (gap,) = index.entries("log", type="GAP")
        assert index.read(gap) == {"type": "GAP", "num_lost": 3}
        (summary,) = index.records_at_step("log", "summary")
        assert (summary.type, summary.step) == ("LOG", "summary")
        assert len(index.entries("log", type="LOG")) == 21
        assert index.records_at_step("log", "no such text") == []
        (tenth,) = index.records_at_step("log", 10)
        assert index.read(tenth) == log(10, loss=1.0)


def test_texts_that_look_like_numbers_stay_texts(layout: RunLayout) -> None:
    write(layout, log("NaN", x=1), {"type": "Infinity", "step": math.nan}, {"type": "é\ud800", "step": 1})
    write(layout, {"type": "NaN", "step": "-Infinity", "data": {"$cost": 1, "x": "NaN"}})
    with refreshed(layout) as index:
        assert index.metrics() == {"$cost": 1, "x": 1}
        assert [(entry.type, entry.step) for entry in index.entries("log")] == [
            ("LOG", "NaN"),
            ("Infinity", None),
            ("é\\ud800", 1),
            ("NaN", "-Infinity"),
        ]


def test_names_in_any_script_are_metrics(layout: RunLayout) -> None:
    write(layout, log(1, **{"Verlust/größe": 1.0, "損失": 2.0, 'a"b\\c': 3.0, "$cost": 4.0}))
    write_raw(layout, b'{"data":{"\\ud800":5}}\n')
    with refreshed(layout) as index:
        assert set(index.metrics()) == {"Verlust/größe", "損失", 'a"b\\c', "$cost", "\\ud800"}
        assert index.series("損失").values.tolist() == [2.0]


def test_a_record_that_is_gone_reads_as_none(layout: RunLayout) -> None:
    write(layout, log(1, loss=1.0))
    with refreshed(layout) as index:
        (entry,) = index.entries("log")
        layout.record_file("log", 0).unlink()
        assert index.read(entry) is None


def test_bad_lines_are_counted_and_skipped(layout: RunLayout) -> None:
    write_raw(layout, b"\xef\xbb\xbf" + b'{"step":1,"data":{"x":1}}\r\n{"step":2,"data":{"x"\n\n[1]\n')
    write_raw(layout, b'\0\0\0\0{"step":3,"data":{"x":3}}\n{"a":"\xff","data":{"x":4}}\n{"a":"\t","data":{"x":5}}\n')
    write_raw(layout, b'{"step":6,"data":{"x":NaN}}\n')
    with refreshed(layout) as index:
        np.testing.assert_array_equal(index.series("x").values, [1.0, 3.0, math.nan])
        assert index.num_records() == 3
        assert index.num_bad() == 5
        assert [record["step"] for record in map(index.read, index.entries("log")) if record] == [1, 3, 6]


def test_a_file_of_bad_lines_only_has_no_records(layout: RunLayout) -> None:
    write_raw(layout, b"not json\nnor this\n")
    with refreshed(layout) as index:
        assert (index.num_records(), index.num_bad(), index.entries("log")) == (0, 2, [])
        write(layout, log(1, loss=1.0))
        index.refresh()
        assert (index.num_records(), index.num_bad()) == (1, 2)


@pytest.mark.usefixtures("small_chunks")
def test_refresh_reads_only_from_the_last_chunk_that_was_not_full(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []

    def noted(path: Path, *, offset: int) -> LineScanner:
        starts.append(offset)
        return LineScanner(path, offset=offset)

    monkeypatch.setattr(index_update, "LineScanner", noted)
    line = b'{"step":1,"data":{"x":1}}\n'
    with RunIndex(layout) as index:
        for num_lines in (3, 2, 3, 0, 1):
            write_raw(layout, line * num_lines)
            index.refresh()
        assert starts == [0, 0, 4 * len(line), 8 * len(line)]
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


def test_a_chunk_of_long_records_ends_early(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_chunk, "CHUNK_BYTES", 1000)
    write(layout, *(log(step, loss=step, text="x" * 600) for step in range(10)))
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == list(range(10))
    assert num_chunks(layout) == 5


def test_more_chunks_than_a_transaction_holds_are_all_indexed(layout: RunLayout, small_chunks: None) -> None:
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


@pytest.mark.parametrize("new", [b"", b'{"step":9,"data":{"loss":9}}\n', b'{"step":1,"data":{"loss":7}}\n' * 5])
def test_a_file_that_was_truncated_or_replaced_is_indexed_anew(layout: RunLayout, new: bytes) -> None:
    write_raw(layout, b'{"step":1,"data":{"loss":1}}\n' * 3)
    with refreshed(layout) as index:
        layout.record_file("log", 0).write_bytes(new)
        index.refresh()
        assert index.series("loss").values.tolist() == {0: [], 1: [9.0], 5: [7.0] * 5}[new.count(b"\n")]
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


def test_a_file_deleted_while_it_is_indexed_is_no_error(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    write(layout, log(1, loss=1.0))
    files = layout.record_files()
    layout.record_file("log", 0).unlink()
    monkeypatch.setattr(RunLayout, "record_files", lambda _: files)
    with refreshed(layout) as index:
        assert index.num_records() == 0


def test_a_copied_run_keeps_its_index(layout: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(layout, log(1, loss=1.0))
    with refreshed(layout):
        pass
    copy = RunLayout(tmp_path / "copy")
    copy.records.mkdir(parents=True)
    copy.index.write_bytes(layout.index.read_bytes())
    copy.record_file("log", 0).write_bytes(layout.record_file("log", 0).read_bytes())
    monkeypatch.delattr(index_update, "LineScanner")  # so that reading any line would fail
    with refreshed(copy) as index:
        assert index.entries("log")[0].path == copy.record_file("log", 0)


def make_garbage(path: Path) -> None:
    path.write_bytes(os.urandom(10_000))


def make_foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE files (anything TEXT)")


def make_older(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def make_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [make_garbage, make_older, make_cut, make_empty], ids=lambda damage: damage.__name__)
def test_an_index_that_cannot_be_used_is_rebuilt(layout: RunLayout, damage: Callable[[Path], None]) -> None:
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
    index = RunIndex(layout)
    index.close()
    with pytest.raises(sqlite3.ProgrammingError):
        index.metrics()


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

    def overtaken(scanner: LineScanner, stream: BinaryIO) -> Iterator[index_chunk.Chunk]:
        chunks = list(index_chunk.read_chunks(scanner, stream))
        if others:
            with others.pop() as other:
                other.refresh()
        return iter(chunks)

    monkeypatch.setattr(index_update, "read_chunks", overtaken)
    with refreshed(layout) as index:
        assert index.series("loss").values.tolist() == list(range(10))
    assert others == []
    assert num_chunks(layout) == 3


@pytest.mark.slow
def test_processes_that_refresh_a_growing_run_at_once_all_succeed(layout: RunLayout) -> None:
    program = """
import sys
from pathlib import Path
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
with RunIndex(RunLayout(Path(sys.argv[1]))) as index:
    while index.num_records() < 20000:
        index.refresh()
        values = index.series("loss").values
        assert values.tolist() == list(range(len(values)))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program, str(layout.root)]) for _ in range(3)]
    with RecordFile(layout.record_file("log", 0)) as file:
        for step in range(20_000):
            file.append(log(step, loss=step))
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with refreshed(layout) as index:
        assert index.num_records() == 20_000
    assert num_chunks(layout) == 2
