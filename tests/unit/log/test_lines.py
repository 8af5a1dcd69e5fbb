import datetime
import json
import math
from pathlib import Path

import pytest

from sonde.log.lines import LogFile, LogRecord, normalised_time, parse_log_line, seconds_of_time


def tcap(data: str) -> LogRecord:
    line = {
        "timestamp": "1.5",
        "datetime": "2026-11-15 19:46:47",
        "elapsedtime": "5e-06",
        "type": "LOG",
    }
    record = parse_log_line(
        b"TCAPPDLL " + json.dumps({**line, "step": [0, 1], "data": data}).encode()
    )
    assert isinstance(record, LogRecord)
    return record


def test_plain_line() -> None:
    times = b'"timestamp":1.5,"elapsedtime":0.5,"datetime":"t"'
    line = b"{" + times + b',"type":"LOG","step":3,"rank":2,"data":{"a":"NaN"}}'
    record = parse_log_line(line, rank=9)
    assert isinstance(record, LogRecord)
    assert (record.timestamp, record.elapsedtime, record.step, record.rank) == (1.5, 0.5, 3, 2)
    assert math.isnan(record.data["a"])


def test_nvidia_line_has_the_rank_of_its_file() -> None:
    record = parse_log_line(
        b'DLLL {"timestamp": "1.5", "type": "LOG", "step": [], "data": {"a": NaN}}', rank=4
    )
    assert isinstance(record, LogRecord)
    assert (record.timestamp, record.elapsedtime, record.step, record.rank) == (1.5, None, [], 4)
    assert math.isnan(record.data["a"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0", 1.0),
        ("3", 3),
        ("[16, 3]", [16, 3]),
        ("None", None),
        ("True", True),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("tensor(1.5000)", 1.5),
        ("tensor(1.5000, device='cuda:0', grad_fn=<MeanBackward0>)", 1.5),
        ("tensor([1., 2.])", [1.0, 2.0]),
        ("tensor(inf)", math.inf),
        ("torch.Size([1, 2])", [1, 2]),
        ("total_loss: 22.4, iou_loss: 1", "total_loss: 22.4, iou_loss: 1"),
        ("__import__('os').system('false')", "__import__('os').system('false')"),
        ("(" * 5000, "(" * 5000),
        ("0" * 20, 0),
    ],
)
def test_tcap_values_are_unquoted(text: str, value: object) -> None:
    assert tcap(repr({"x": text})).data == {"x": value}


def test_tcap_nan_is_a_number() -> None:
    assert math.isnan(tcap(repr({"x": "nan"})).data["x"])


def test_tcap_names_are_given_back() -> None:
    assert tcap("{'QA.loss': '1.0', 'QA.speed': '2', 'QA.other': '3'}").data == {
        "loss": 1.0,
        "speed": 2,
        "QA.other": 3,
    }


def test_a_text_that_looks_like_a_number_stays_a_text_in_lines_of_others() -> None:
    line = (
        b'DLLL {"timestamp": "1.5", "type": "LOG", "step": 1, "data": {"a": "NaN", "b":'
        b' "-Infinity", "c": [NaN, "NaN"]}}'
    )
    record = parse_log_line(line)
    assert isinstance(record, LogRecord)
    assert repr(record.data) == "{'a': 'NaN', 'b': '-Infinity', 'c': [nan, 'NaN']}"
    assert tcap(repr({"x": "NaN"})).data == {"x": "NaN"}


@pytest.mark.parametrize(
    "text",
    [
        "[nan, 1.0, -inf]",
        "{'a': nan, 'b': [inf]}",
        "(nan,)",
        "[[1, nan], [2.5, -1]]",
        "{'banana': 'inf'}",
    ],
)
def test_lists_and_dicts_with_nan_in_tcap_files_are_read(text: str) -> None:
    (value,) = tcap(repr({"x": text})).data.values()
    assert not isinstance(value, str)
    assert repr(value) == text


def test_a_name_that_is_no_number_leaves_the_text() -> None:
    for text in ("[nan, x]", "nan + f(1)", "[inf", "finance"):
        assert tcap(repr({"x": text})).data == {"x": text}


def test_tcap_data_that_is_no_dict_stays_text() -> None:
    assert tcap("{'a': ").data == "{'a': "


def test_names_of_our_own_are_left_alone() -> None:
    record = parse_log_line(b'{"type":"LOG","step":1,"data":{"QA.loss":"1.0"}}')
    assert isinstance(record, LogRecord)
    assert record.data == {"QA.loss": "1.0"}


def test_info_line_has_its_rank_and_time() -> None:
    line = (
        b'INFO {"local_rank": 3, "datetime": "2026-11-15 21:08:01.25+00:00", "type": "INFO",'
        b' "data": {"lr": 0.1}}'
    )
    record = parse_log_line(line)
    assert isinstance(record, LogRecord)
    assert (record.rank, record.datetime, record.data) == (
        3,
        "2026-11-15 21:08:01.25+00:00",
        {"lr": 0.1},
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2026-11-15T21:08:01Z", "2026-11-15T21:08:01+00:00"),
        ("2026-11-15 21:08:01,123", "2026-11-15 21:08:01.123000"),
        ("2026-11-15T21:08:01.123456789Z", "2026-11-15T21:08:01.123456+00:00"),
        ("2026-11-15 21:08:01.5-0530", "2026-11-15 21:08:01.500000-05:30"),
        ("2026-11-15 21:08:01+01:00", "2026-11-15 21:08:01+01:00"),
        ("2026-11-15", "2026-11-15"),
        ("yesterday", "yesterday"),
    ],
)
def test_a_time_is_written_as_every_python_reads_it(written: str, expected: str) -> None:
    assert normalised_time(written) == expected


def test_a_time_of_another_logger_is_read_with_its_zone() -> None:
    exact = datetime.datetime(2026, 11, 15, 21, 8, 1, 500_000, tzinfo=datetime.timezone.utc)
    assert seconds_of_time("2026-11-15T21:08:01.500000000Z") == exact.timestamp()
    assert seconds_of_time("2026-11-15 21:08:01,5+00:00") == exact.timestamp()
    assert seconds_of_time("t") is None


def test_gap_gives_the_number_of_lost_records() -> None:
    assert parse_log_line(b'{"type":"GAP","num_lost":3,"errno":28}') == 3


@pytest.mark.parametrize(
    "line", [b"", b"DLLL ", b"hello", b"[1]", b'{"type":"EVENT"}', b"{}", b'DLLL {"type": "LOG"']
)
def test_what_is_no_line_of_a_log_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_log_line(line)


def test_a_line_that_is_no_record_is_located(tmp_path: Path) -> None:
    good = b'{"type":"LOG","step":1,"data":{"loss":1.0}}\n'
    path = tmp_path / "log.jsonl"
    path.write_bytes(good + b"torn\n" + good)
    file = LogFile(path)
    assert [len(file.records(block)) for block in file.blocks()] == [2]
    assert [bad.offset for bad in file.scanner.bad_lines] == [len(good)]
