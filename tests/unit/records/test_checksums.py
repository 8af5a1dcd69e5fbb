"""A directory verifies only when every byte of it is as it was written, the manifest's own
included.
"""

import errno
import hashlib
import json
import os
import random
from pathlib import Path
from typing import BinaryIO

import pytest
from checksummed import write_checksums

from sonde.records import checksums
from sonde.records.checksums import NAME, file_digest, verify_checksums


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    (tmp_path / "a1").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "a3").write_bytes(b"")
    (tmp_path / "part" / "rows.bin").write_bytes(os.urandom(1000))
    (tmp_path / "$odd \u00e9.json").write_bytes(b"{}")
    write_checksums(tmp_path)
    return tmp_path


def test_the_manifest_names_every_file_with_size_and_digest(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    write_checksums(tmp_path)
    assert json.loads((tmp_path / NAME).read_bytes()) == {
        "format": "sonde-checksums",
        "version": 1,
        "files": {"x": {"num_bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}},
    }
    assert file_digest(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()


def test_an_untouched_directory_verifies(directory: Path) -> None:
    assert verify_checksums(directory) == []
    write_checksums(directory)
    assert verify_checksums(directory) == []


def test_no_bit_flip_in_any_file_goes_unnoticed(directory: Path) -> None:
    files = [
        path for path in sorted(directory.rglob("*")) if path.is_file() and path.stat().st_size
    ]
    draw = random.Random(1)
    for number in range(200):
        path = files[number % len(files)]
        content = bytearray(path.read_bytes())
        bit = draw.randrange(len(content) * 8)
        content[bit // 8] ^= 1 << bit % 8
        original = path.read_bytes()
        path.write_bytes(content)
        assert verify_checksums(directory), f"bit {bit} of {path.name}"
        path.write_bytes(original)
    assert verify_checksums(directory) == []


@pytest.mark.slow
def test_every_byte_of_the_manifest_matters(directory: Path) -> None:
    original = (directory / NAME).read_bytes()
    for bit in range(0, len(original) * 8, 7):
        content = bytearray(original)
        content[bit // 8] ^= 1 << bit % 8
        (directory / NAME).write_bytes(content)
        assert verify_checksums(directory), f"bit {bit}"


def test_every_truncation_is_noticed(directory: Path) -> None:
    for path in (directory / "a1", directory / "part" / "rows.bin", directory / NAME):
        original = path.read_bytes()
        for num_bytes in (0, 1, len(original) // 2, len(original) - 1):
            path.write_bytes(original[:num_bytes])
            # The manifest ends in a newline, which says nothing.
            assert verify_checksums(directory) or (
                path.name == NAME and num_bytes == len(original) - 1
            )
        path.write_bytes(original)


def test_missing_and_added_and_swapped_files_are_named(directory: Path) -> None:
    (directory / "a3").unlink()
    (directory / "part" / "new").write_text("")
    (directory / "a1").write_bytes((directory / "part" / "rows.bin").read_bytes())
    assert sorted(verify_checksums(directory)) == [
        "a1: 1000 bytes, should be 1024",
        "a3: missing",
        "part/new: not in the manifest",
    ]


@pytest.mark.parametrize(
    "document",
    [
        None,
        b"",
        b"[]",
        b'{"format":"other","version":1,"files":{}}',
        b'{"format":"sonde-checksums","version":2,"files":{}}',
        b'{"format":"sonde-checksums","version":1,"files":[]}',
        b'{"format":"sonde-checksums","version":1,"files":{"a":{}}}',
        b'{"format":"sonde-checksums","version":1,"files":{"a":5}}',
    ],
)
def test_without_a_sound_manifest_nothing_verifies(tmp_path: Path, document: bytes | None) -> None:
    if document is not None:
        (tmp_path / NAME).write_bytes(document)
    (problem,) = verify_checksums(tmp_path)
    assert problem.startswith(NAME)


def test_a_file_that_cannot_be_read_is_a_problem_and_no_exception(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: BinaryIO) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checksums, "stream_digest", broken)
    assert "a1: cannot be read (Input/output error)" in verify_checksums(directory)


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.bin")).write_bytes(b"x")
    write_checksums(tmp_path)
    assert verify_checksums(tmp_path) == []
