import copy
import os
import resource
import struct
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

from sonde.data.mmididx import write_index
from sonde.data.token_file import TokenFile
from sonde.errors import DamagedFile, SettingError


def write_corpus(prefix: Path, sequences: list[list[int]]) -> Path:
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    with Path(f"{prefix}.idx").open("wb") as file:
        write_index(file, [sizes], dtype=np.dtype("<u2"))
    flat = [token for sequence in sequences for token in sequence]
    Path(f"{prefix}.bin").write_bytes(np.array(flat, "<u2").tobytes())
    return prefix


def test_a_sequence_is_a_read_only_view_without_a_copy(tmp_path: Path) -> None:
    tokens = TokenFile(write_corpus(tmp_path / "x", [[4, 5, 2], [], [6, 2]]))
    assert tokens[0].tolist() == [4, 5, 2]
    assert np.shares_memory(tokens[0], tokens.flat)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0][0] = 1


def test_negative_numbers_count_from_the_end_and_others_are_index_errors(tmp_path: Path) -> None:
    tokens = TokenFile(write_corpus(tmp_path / "x", [[4, 5, 2], [], [6, 2]]))
    assert tokens[-1].tolist() == [6, 2]
    assert tokens[1].tolist() == []
    for sample in (3, -4):
        with pytest.raises(IndexError):
            tokens[sample]


@pytest.mark.parametrize("sequences", [[], [[]], [[], []]])
def test_a_corpus_without_tokens_opens(tmp_path: Path, sequences: list[list[int]]) -> None:
    tokens = TokenFile(write_corpus(tmp_path / "x", sequences))
    assert len(tokens) == len(sequences)
    assert tokens.num_tokens == 0


def test_it_travels_to_workers_as_its_path(tmp_path: Path) -> None:
    tokens = TokenFile(write_corpus(tmp_path / "x", [[4, 5, 2]] * 1000))
    assert len(ForkingPickler.dumps(tokens)) < 300
    assert copy.copy(tokens)[999].tolist() == [4, 5, 2]


def test_verify_finds_a_wrong_size_between_the_spots(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "x", [[4, 5, 2]] * 5000)
    tokens = TokenFile(prefix)
    tokens.verify()
    content = bytearray(Path(f"{prefix}.idx").read_bytes())
    content[26 + 4 * 1003] = 2
    Path(f"{prefix}.idx").write_bytes(content)
    with pytest.raises(DamagedFile, match="sequence 1003"):
        TokenFile(prefix).verify()


def test_a_corpus_of_another_system_knows_no_lines(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="does not know its text"):
        TokenFile(write_corpus(tmp_path / "x", [[4, 2]])).origin(0)


def test_a_hundred_million_samples_open_at_once_and_in_no_memory(tmp_path: Path) -> None:
    num_samples = 100_000_000
    last_tokens = np.array([7, 8, 2], "<u2")
    # sparse: all sizes and offsets but the last are holes of zeros
    with (tmp_path / "x.idx").open("wb") as file:
        file.write(struct.pack("<9sQBQ", b"MMIDIDX\x00\x00", 1, 8, num_samples))
        file.seek(26 + 4 * (num_samples - 1))
        file.write(struct.pack("<i", len(last_tokens)))
        file.truncate(26 + 12 * num_samples)
    (tmp_path / "x.bin").write_bytes(last_tokens.tobytes())
    assert os.stat(tmp_path / "x.idx").st_blocks * 512 < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    tokens = TokenFile(tmp_path / "x")
    assert tokens[num_samples - 1].tolist() == [7, 8, 2]
    assert time.perf_counter() - started < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB
