"""Whatever bytes are changed in a file, what is read is a part of what was written, and nothing
raises.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sonde.records.reader import (
    LineScanner,
    newest_records,
    parse_line,
    read_record_at,
    read_records,
)
from sonde.records.values import encode

RECORDS = st.lists(
    st.dictionaries(
        st.sampled_from("abc"), st.integers(0, 9) | st.floats() | st.text(max_size=5), max_size=3
    ),
    max_size=8,
)
NUM_EXAMPLES = 80


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "log.jsonl"


def check(
    path: Path, written: list[dict[str, object]], damaged: bytes, num_damaged_lines: int
) -> None:
    """All but `num_damaged_lines` of the numbered records are read back, unchanged, in order, and
    the rest is counted.
    """
    path.write_bytes(damaged)
    reading = read_records(path)
    found = list(reading)
    whole = {repr(record) for record in written}
    intact = [record for record in found if repr(record) in whole]
    numbers = [record["number"] for record in intact]
    assert numbers == sorted(set(numbers))
    assert len(intact) >= len(written) - num_damaged_lines
    # A changed byte may leave a line that is still an object; it can only be one of the lines that
    # were hit.
    assert len(found) - len(intact) <= num_damaged_lines
    num_lines = sum(
        1 for line in damaged.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()
    )
    assert reading.num_bad + len(found) + bool(reading.torn_bytes) >= num_lines
    scanner = LineScanner(path)
    with path.open("rb") as file:
        for offset, line in scanner.lines(file):
            assert repr(read_record_at(path, offset)) == repr(parse_line(scanner, offset, line))
    list(newest_records(path, num_bytes=20))


def numbered(records: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{"number": number, **record} for number, record in enumerate(records)]


@given(RECORDS, st.data())
@settings(max_examples=NUM_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flipped_bytes_cost_the_lines_they_are_in(
    path: Path, records: list[dict[str, object]], data: st.DataObject
) -> None:
    written = numbered(records)
    content = bytearray(b"".join(encode(record) for record in written))
    places = (
        data.draw(st.sets(st.integers(0, max(len(content) - 1, 0)), max_size=3))
        if content
        else set()
    )
    for place in places:
        content[place] ^= data.draw(st.integers(1, 255))
    # A lost newline joins two lines.
    check(path, written, bytes(content), 2 * len(places))


@given(RECORDS, st.data())
@settings(max_examples=NUM_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cut_costs_the_lines_it_goes_through(
    path: Path, records: list[dict[str, object]], data: st.DataObject
) -> None:
    written = numbered(records)
    content = b"".join(encode(record) for record in written)
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    num_lines = content.count(b"\n", start, end) + 1
    check(path, written, content[:start] + content[end:], num_lines)


@given(RECORDS, st.binary(max_size=30), st.data())
@settings(max_examples=NUM_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_foreign_bytes_between_lines_cost_nothing(
    path: Path, records: list[dict[str, object]], garbage: bytes, data: st.DataObject
) -> None:
    written = numbered(records)
    lines = [encode(record) for record in written]
    place = data.draw(st.integers(0, len(lines)))
    garbage = garbage.replace(b"{", b"")  # not a record by accident
    check(path, written, b"".join([*lines[:place], garbage + b"\n", *lines[place:]]), 0)
