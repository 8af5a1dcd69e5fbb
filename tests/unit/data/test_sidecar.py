import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sonde.data.token_file import (
    FileStamp,
    Sidecar,
    TokenizerStamp,
    beside,
    check_stamp,
    find_line,
    line_starts,
    read_sidecar,
    stamp_file,
    write_sidecar,
)
from sonde.errors import DamagedFile

STAMP = FileStamp(num_bytes=3, sha256="a", spot_sha256="b")
SIDECAR = Sidecar(
    split="train",
    language="en",
    languages=("en", "de"),
    num_samples=3,
    num_tokens=9,
    source="corpus.en",
    num_source_lines=4,
    left_out={"empty": 1},
    tokenizer=TokenizerStamp(kind="word", file="dict.txt", digest="c", vocab_size=8),
    bin=STAMP,
    idx=STAMP,
    lines=STAMP,
)


def test_a_sidecar_reads_back_as_it_was(tmp_path: Path) -> None:
    write_sidecar(tmp_path / "train.en", SIDECAR)
    assert read_sidecar(tmp_path / "train.en") == SIDECAR


def test_no_sidecar_is_no_error(tmp_path: Path) -> None:
    assert read_sidecar(tmp_path / "train.en") is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not a sidecar"),
        (b"[]", "Expected `object`"),
        (b'{"format":"sonde-spikes","version":1}', r"Invalid .* `\$.format`"),
        (b'{"format":"sonde-tokens","version":2}', r"Invalid .* `\$.version`"),
        (b'{"format":"sonde-tokens","version":1}', "missing required field"),
    ],
)
def test_a_strange_sidecar_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    beside(tmp_path / "x", ".json").write_bytes(content)
    with pytest.raises(DamagedFile, match=reason):
        read_sidecar(tmp_path / "x")


def test_a_stamp_tells_truncated_from_stale_from_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(1_000_000))
    stamp = stamp_file(path)
    check_stamp(path, stamp, every_byte=True)
    path.write_bytes(bytes(999_999))
    with pytest.raises(DamagedFile, match="truncated"):
        check_stamp(path, stamp)
    path.write_bytes(b"\x01" * 1_000_000)
    with pytest.raises(DamagedFile, match="stale"):
        check_stamp(path, stamp)
    path.unlink()
    with pytest.raises(DamagedFile, match="missing"):
        check_stamp(path, stamp)


def test_one_changed_byte_is_found_when_every_byte_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.data.token_file._WHOLE_BYTES", 0)
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(1_000_000))
    stamp = stamp_file(path)
    content = bytearray(1_000_000)
    content[10_000] = 1
    path.write_bytes(content)
    check_stamp(path, stamp)  # between the spots
    with pytest.raises(DamagedFile, match="stale"):
        check_stamp(path, stamp, every_byte=True)


def test_every_sample_finds_its_line_whatever_was_left_out() -> None:
    left_out = [0, 3, 4, 5, 9]
    starts = line_starts(np.array(left_out, np.int64))
    lines = [line + 1 for line in range(12) if line not in left_out]
    assert [find_line(starts, sample) for sample in range(len(lines))] == lines


def test_nothing_left_out_is_one_row() -> None:
    assert line_starts(np.array([], np.int64)).tolist() == [[0, 1]]


def test_every_field_is_written() -> None:
    assert {field.name for field in dataclasses.fields(Sidecar)} >= {
        "bin",
        "idx",
        "lines",
        "tokenizer",
        "source",
    }
