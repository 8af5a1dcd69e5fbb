"""A checksum in the last field of a JSON object."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sonde.records.append import RecordFile
from sonde.records.reader import damage_text, read_records
from sonde.records.seal import are_intact, seal, seal_document, unseal, unseal_document

LINE = b'{"type":"STEP","step":7,"loss":5.25}\n'


def test_a_sealed_line_is_json_and_comes_back_as_it_was() -> None:
    sealed = seal(LINE)
    assert json.loads(sealed) == {"type": "STEP", "step": 7, "loss": 5.25, "_crc": "64abc53c"}
    assert unseal(sealed.rstrip()) == LINE.rstrip()


@pytest.mark.parametrize("line", [b"{}\n", b"[1,2]\n", b'"text"\n', b"7\n", b"null\n", b"\n"])
def test_what_has_no_place_for_a_checksum_is_left_as_it_is(line: bytes) -> None:
    assert seal(line) == line
    assert unseal(line.rstrip()) == line.rstrip()


@given(some.dictionaries(some.text(), some.integers() | some.text()), some.integers(0, 10**6))
def test_any_flipped_bit_is_noticed(values: dict[str, int | str], bit: int) -> None:
    sealed = bytearray(seal(json.dumps({"step": 1, **values}).encode() + b"\n").rstrip())
    bit %= 8 * len(sealed)
    sealed[bit // 8] ^= 1 << bit % 8
    try:
        record = json.loads(unseal(bytes(sealed)))
    except ValueError:
        return
    raise AssertionError(record)


def test_a_document_of_any_form_is_sealed_and_says_what_to_do_when_it_was_edited() -> None:
    document = json.dumps({"a": 1, "b": [2]}, indent=2).encode() + b"\n"
    sealed = seal_document(document)
    assert json.loads(unseal_document(sealed)) == json.loads(document)
    with pytest.raises(ValueError, match='takes the field "_crc" out'):
        unseal_document(sealed.replace(b"2", b"3"))


def test_many_lines_are_checked_at_once_with_and_without_checksums() -> None:
    lines = [seal(b'{"step":%d,"loss":0.5}\n' % step).rstrip() for step in range(100)]
    lines[5] = b'{"step":5,"loss":0.5,"another":"0123456789"}'
    assert are_intact(lines)
    for _ in range(100):
        place = random.randrange(100)
        damaged = bytearray(lines[place])
        damaged[9] ^= 1
        assert are_intact([*lines[:place], bytes(damaged), *lines[place + 1 :]]) == (place == 5)
    assert not are_intact([lines[0][:-3] + b'x"}'])


def test_a_damaged_line_of_records_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "steps.rank0.jsonl"
    with RecordFile(path) as file:
        file.append_many([{"step": step, "loss": 5.25} for step in range(5)])
    path.write_bytes(path.read_bytes().replace(b'"step":3,"loss":5.25', b'"step":3,"loss":7.25'))
    reading = read_records(path)
    assert list(reading) == [{"step": step, "loss": 5.25} for step in (0, 1, 2, 4)]
    assert (reading.num_bad, damage_text(reading.num_bad)) == (1, "1 damaged line")
    assert "checksum" in reading.bad_lines[0].reason
    assert (damage_text(0), damage_text(3000)) == ("", "3,000 damaged lines")
