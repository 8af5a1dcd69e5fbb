import io
import struct
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from sonde.data.mmididx import Layout, read_index, token_dtype, write_index
from sonde.errors import DamagedFile

SIZES = np.array([3, 2, 5, 0], np.int32)


def write_corpus(prefix: Path, layout: Layout = "fairseq", dtype: str = "<u2") -> tuple[Path, Path]:
    index = Path(f"{prefix}.idx")
    tokens = Path(f"{prefix}.bin")
    with index.open("wb") as file:
        write_index(file, [SIZES], dtype=np.dtype(dtype), layout=layout)
    tokens.write_bytes(np.arange(10, dtype=dtype).tobytes())
    return index, tokens


@pytest.mark.parametrize("layout", get_args(Layout))
def test_what_is_written_is_read(tmp_path: Path, layout: Layout) -> None:
    index = read_index(*write_corpus(tmp_path / "x", layout))
    assert (index.layout, index.num_samples, index.num_bin_bytes) == (layout, 4, 20)
    assert index.num_documents == (5 if layout == "megatron" else 0)


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("num_lost", [1, 8, 60])
def test_a_truncated_index_is_refused(tmp_path: Path, layout: Layout, num_lost: int) -> None:
    index, tokens = write_corpus(tmp_path / "x", layout)
    index.write_bytes(index.read_bytes()[:-num_lost])
    with pytest.raises(DamagedFile, match=r"truncated|wrong size"):
        read_index(index, tokens)


def test_a_truncated_bin_is_refused(tmp_path: Path) -> None:
    index, tokens = write_corpus(tmp_path / "x")
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(DamagedFile, match=r"does not belong to x\.bin"):
        read_index(index, tokens)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"TNTIDX\x00\x00" + bytes(40), "is not an MMIDIDX index"),
        (b"PK\x03\x04" + bytes(40), "not an MMIDIDX"),
        (b"MMIDIDX\x00\x00\x01", "truncated"),
        (struct.pack("<9sQBQ", b"MMIDIDX\x00\x00", 2, 8, 0), "version 2"),
        (struct.pack("<9sQBQ", b"MMIDIDX\x00\x00", 1, 99, 0), "token type 99"),
        (b"", "not an MMIDIDX"),
    ],
)
def test_a_foreign_index_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "x.idx").write_bytes(content)
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(DamagedFile, match=reason):
        read_index(tmp_path / "x.idx", tmp_path / "x.bin")


def test_negative_offsets_are_refused_and_explained(tmp_path: Path) -> None:
    index, tokens = write_corpus(tmp_path / "x")
    content = bytearray(index.read_bytes())
    content[26 + 16 + 8 : 26 + 16 + 16] = (-294967296).to_bytes(8, "little", signed=True)
    index.write_bytes(content)
    with pytest.raises(DamagedFile) as caught:
        read_index(index, tokens)
    assert "-294967296" in str(caught.value)


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    index, tokens = write_corpus(tmp_path / "x")
    tokens.unlink()
    with pytest.raises(DamagedFile, match=r"x\.bin is missing"):
        read_index(index, tokens)
    tokens.touch()
    index.unlink()
    with pytest.raises(DamagedFile, match=r"x\.idx is missing"):
        read_index(index, tokens)


def test_offsets_pass_two_gibibytes() -> None:
    file = io.BytesIO()
    sizes = np.full(5, 500_000_000, np.int32)
    write_index(file, [sizes[:2], sizes[2:]], dtype=np.dtype("<u2"))
    pointers = np.frombuffer(file.getvalue()[26 + 20 :], "<i8")
    assert pointers.tolist() == [0, 10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9]


@pytest.mark.parametrize(
    ("vocab_size", "layout", "dtype"),
    [
        (65499, "fairseq", "<u2"),
        (65500, "fairseq", "<u4"),
        (4294967295, "fairseq", "<i8"),
        (65499, "megatron", "<u2"),
        (65500, "megatron", "<i4"),
    ],
)
def test_the_token_type_follows_the_vocabulary(vocab_size: int, layout: Layout, dtype: str) -> None:
    assert token_dtype(vocab_size, layout) == np.dtype(dtype)
