import datetime

import pytest

from sonde.log.lines import LogRecord, merge_by_time, parse_log_line


def at(timestamp: float | None) -> LogRecord:
    return LogRecord(type="LOG", timestamp=timestamp)


def test_a_record_without_a_timestamp_takes_its_local_time() -> None:
    line = (
        b'INFO {"local_rank": 0, "datetime": "2026-11-15 12:00:00", "type": "INFO", "data":'
        b' "start"}'
    )
    record = parse_log_line(line)
    assert isinstance(record, LogRecord)
    assert record.timestamp == datetime.datetime(2026, 11, 15, 12).astimezone().timestamp()
    record = parse_log_line(line.replace(b"2026-11", b"no date"))
    assert isinstance(record, LogRecord)
    assert record.timestamp is None


@pytest.mark.parametrize("times", [[], [1.0, 2.0], [2.0, None, 1.0]])
def test_one_file_stays_in_its_order(times: list[float | None]) -> None:
    records = [at(time) for time in times]
    assert merge_by_time([records]) == records


def test_files_are_merged_by_time() -> None:
    merged = merge_by_time([[at(1.0), at(4.0)], [at(2.0), at(None), at(5.0)]])
    assert [record.timestamp for record in merged] == [1.0, 2.0, None, 4.0, 5.0]
