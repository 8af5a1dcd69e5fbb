"""Reading back whatever happened to a file: skipped, counted, located, and the rest is there."""

import json
import math
from pathlib import Path

import pytest

from sonde.records import reader
from sonde.records.append import RecordFile
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.reader import (
    LineScanner,
    newest_records,
    read_record_at,
    read_records,
)
from sonde.records.values import encode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def lines_of(*steps: int) -> bytes:
    return b"".join(encode({"step": step}) for step in steps)


def steps_in(path: Path) -> list[int]:
    return [record["step"] for record in read_records(path)]


def test_records_come_in_order_each_with_the_offset_of_its_line(path: Path) -> None:
    path.write_bytes(lines_of(1, 22, 3))
    reading = read_records(path)
    assert list(reading) == [{"step": 1}, {"step": 22}, {"step": 3}]
    assert (reading.num_bad, reading.torn_bytes) == (0, 0)
    assert [read_record_at(path, offset) for offset in (0, 11, 23)] == list(read_records(path))
    assert list(read_records(path, offset=11)) == [{"step": 22}, {"step": 3}]


def test_an_empty_file_has_no_records(path: Path) -> None:
    path.write_bytes(b"")
    assert list(read_records(path)) == []
    assert read_record_at(path, 0) is None


def test_a_torn_tail_is_counted_and_not_read(path: Path) -> None:
    whole = lines_of(1, 2)
    for cut in range(12, 22):
        path.write_bytes(whole[:cut])
        reading = read_records(path)
        assert [record["step"] for record in reading] == [1] if cut < 21 else [1, 2]
        assert reading.torn_bytes == (cut - 11 if cut < 21 else 0)
        assert reading.num_bad == 0


def test_a_whole_last_line_without_newline_is_a_record_given_once(path: Path) -> None:
    path.write_bytes(lines_of(1, 2)[:-1])
    reading = read_records(path)
    assert [record["step"] for record in reading] == [1, 2]
    assert list(reading) == []
    assert reading.torn_bytes == 0
    with path.open("ab") as file:
        file.write(b"\n" + lines_of(3))
    assert [record["step"] for record in reading] == [3]


def test_a_last_line_that_grows_while_it_is_read_is_not_mistaken(path: Path) -> None:
    path.write_bytes(lines_of(1) + b'{"step":2}')
    records = iter(read_records(path))
    assert next(records) == {"step": 1}
    with path.open("ab") as file:
        file.write(b'\n{"step":3}\n')
    assert [record["step"] for record in records] in ([2], [2, 3])


def test_nul_blocks_are_counted_and_a_record_behind_them_is_read(path: Path) -> None:
    path.write_bytes(
        lines_of(1) + b"\0" * 4096 + lines_of(2) + b"\0" * 100 + b"\n" + lines_of(3) + b"\0" * 50
    )
    reading = read_records(path)
    assert [record["step"] for record in reading] == [1, 2, 3]
    assert read_record_at(path, 11) == {"step": 2}
    assert [(bad.offset, bad.reason) for bad in reading.bad_lines] == [
        (11, "NUL bytes"),
        (4118, "NUL bytes"),
    ]
    assert reading.torn_bytes == 50


@pytest.mark.parametrize(
    "rest", [b"", b"\n", b"\r\n", lines_of(1), b"\0\n" + lines_of(1), lines_of(1)[:-1]]
)
def test_a_byte_order_mark_is_no_part_of_the_first_record(path: Path, rest: bytes) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + rest)
    assert steps_in(path) == ([1] if b"step" in rest else [])


def test_windows_line_ends_and_blank_lines_are_harmless(path: Path) -> None:
    path.write_bytes(b'{"step":1}\r\n\r\n \n\n{"step":2}\r\n')
    reading = read_records(path)
    assert [record["step"] for record in reading] == [1, 2]
    assert reading.num_bad == 0


@pytest.mark.parametrize(
    "foreign", [b'{"step":', b"DLLL {}", b"\xff\xfe\x00\xff", b'{"step":2}{"step":3}', b"[" * 5000]
)
def test_a_corrupt_line_in_the_middle_is_skipped_counted_and_located(
    path: Path, foreign: bytes
) -> None:
    path.write_bytes(lines_of(1) + foreign + b"\n" + lines_of(4))
    reading = read_records(path)
    assert [record["step"] for record in reading] == [1, 4]
    (bad,) = reading.bad_lines
    assert (bad.path, bad.offset, bad.num_bytes, reading.num_bad) == (path, 11, len(foreign), 1)
    assert bad.reason.startswith("not JSON")
    assert read_record_at(path, 11) is None


@pytest.mark.parametrize(
    "foreign", [b"5", b'"text"', b"null", b"[1]", b'{"$int":"5"}', b'"NaN"', b"NaN"]
)
def test_json_that_is_no_object_is_no_record(path: Path, foreign: bytes) -> None:
    path.write_bytes(foreign + b"\n" + lines_of(1) + foreign)
    reading = read_records(path)
    assert [record["step"] for record in reading] == [1]
    assert [bad.reason for bad in reading.bad_lines] == ["not a JSON object"]
    assert reading.torn_bytes == len(foreign)


def test_all_bad_lines_are_counted_but_only_the_first_hundred_are_kept(path: Path) -> None:
    path.write_bytes(b"x\n" * 1000)
    reading = read_records(path)
    assert list(reading) == []
    assert (reading.num_bad, len(reading.bad_lines), reading.bad_lines[-1].offset) == (
        1000,
        100,
        198,
    )


def test_what_pythons_json_writes_is_read(path: Path) -> None:
    path.write_text(json.dumps({"loss": math.nan, "best": -math.inf, "text": "\ud800é"}) + "\n")
    (record,) = read_records(path)
    assert repr(record) == repr({"loss": math.nan, "best": -math.inf, "text": "\ud800é"})


@pytest.mark.parametrize("length", [99, 100, 101, 150, 1000])
@pytest.mark.parametrize("newline", [b"\n", b""])
def test_an_overlong_line_is_skipped_without_being_held(
    path: Path, length: int, newline: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 16)
    path.write_bytes(lines_of(1) + b"x" * length + newline + (lines_of(2) if newline else b""))
    reading = read_records(path)
    assert [record["step"] for record in reading] == ([1, 2] if newline else [1])
    if newline or length > 120:
        assert (reading.num_bad, reading.bad_lines[0].offset) == (1, 11)
    else:
        assert reading.num_bad or reading.torn_bytes == length


def test_lines_longer_than_a_block_are_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 7)
    path.write_bytes(lines_of(*range(100)))
    assert steps_in(path) == list(range(100))


def test_a_scanner_goes_on_where_it_stopped(path: Path) -> None:
    scanner = LineScanner(path)
    path.write_bytes(b'{"step":1}\n{"st')
    with path.open("rb") as file:
        assert [line for _, line in scanner.lines(file)] == [b'{"step":1}']
        assert (scanner.offset, scanner.torn_bytes) == (11, 4)
        with path.open("ab") as writer:
            writer.write(b'ep":2}\n')
        assert list(scanner.lines(file)) == [(11, b'{"step":2}')]
    assert scanner.torn_bytes == 0


def test_the_last_records_are_found_from_the_end(path: Path) -> None:
    path.write_bytes(lines_of(*range(1000)))
    last = list(newest_records(path, num_bytes=100))
    assert last[0] == {"step": 999}
    assert 5 < len(last) < 10
    assert len(list(newest_records(path))) == 1000
    path.write_bytes(b"x" * 1000)
    assert list(newest_records(path, num_bytes=100)) == []


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_newline_after_the_last_record_is_noticed(tmp_path: Path, bit: int) -> None:
    layout = RunLayout(tmp_path)
    path = layout.record_file("steps", 0)
    path.parent.mkdir()
    with RecordFile(path) as file:
        for step in range(3):
            file.append({"type": "STEP", "step": step})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1 << bit]))
    reading = read_records(path)
    assert len(list(reading)) == 3 or reading.num_bad == 1
    with RunIndex(layout) as index:
        index.refresh()
        assert index.num_records("steps") == 3 or index.num_bad("steps") == 1


def test_a_torn_record_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path) as file:
        file.append({"type": "STEP", "values": {"a": {"b": 1}}})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole + whole[:size])
        reading = read_records(path)
        list(reading)
        assert reading.num_bad == 0
