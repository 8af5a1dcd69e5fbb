import datetime

import pytest

from sonde.log.lines import LogRecord, merge_by_time, with_timestamps


def at(timestamp: float | None, local: str | None = None) -> LogRecord:
    return LogRecord(type="LOG", timestamp=timestamp, datetime=local)


def test_a_missing_timestamp_takes_its_zone_from_the_same_file() -> None:
    # The file was written five hours east of Greenwich, whatever the zone of the machine that reads it.
    records = [at(None, "1970-01-01 06:00:01"), at(3600.0, "1970-01-01 06:00:00"), at(None, "no date"), at(None)]
    assert [record.timestamp for record in with_timestamps(records)] == [3601.0, 3600.0, None, None]


def test_a_local_time_with_a_zone_says_it_itself() -> None:
    (record,) = with_timestamps([at(None, "1970-01-01 06:00:01.5+05:00")])
    assert record.timestamp == 3601.5


def test_a_local_time_alone_is_of_this_machine() -> None:
    (record,) = with_timestamps([at(None, "2026-11-15 12:00:00")])
    assert record.timestamp == datetime.datetime(2026, 11, 15, 12).astimezone().timestamp()


@pytest.mark.parametrize("times", [[], [1.0, 2.0], [2.0, None, 1.0]])
def test_one_file_stays_in_its_order(times: list[float | None]) -> None:
    records = [at(time) for time in times]
    assert merge_by_time([records]) == records


def test_files_are_merged_by_time() -> None:
    merged = merge_by_time([[at(1.0), at(4.0)], [at(2.0), at(None), at(5.0)]])
    assert [record.timestamp for record in merged] == [1.0, 2.0, None, 4.0, 5.0]
