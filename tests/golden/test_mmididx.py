"""Corpora written by fairseq 0.12.2 (3d262bb2) and Megatron-LM (d98e8a64) themselves, read; and
ours, byte for byte.
"""

from pathlib import Path

import numpy as np
import pytest

from sonde.data.mmididx import Layout, write_index
from sonde.data.token_file import TokenFile

GOLDEN = Path(__file__).parent / "data" / "mmididx"
SEQUENCES = [[4, 5, 2], [6, 2], [7, 8, 9, 10, 2], []]
SIZES = np.array([3, 2, 5, 0], np.int32)


@pytest.mark.parametrize(
    ("name", "layout", "dtype", "offset"),
    [
        ("fairseq-u2", "fairseq", "<u2", 0),
        ("fairseq-u4", "fairseq", "<u4", 70000),
        ("megatron-u2", "megatron", "<u2", 0),
        ("megatron-i4", "megatron", "<i4", 70000),
    ],
)
def test_corpora_of_both_systems_read_back_equal(
    name: str, layout: Layout, dtype: str, offset: int
) -> None:
    tokens = TokenFile(GOLDEN / name)
    assert tokens.index.layout == layout
    assert tokens.index.dtype == np.dtype(dtype)
    assert [tokens[sample].tolist() for sample in range(len(tokens))] == [
        [token + offset for token in sequence] for sequence in SEQUENCES
    ]


def test_megatrons_documents_are_known() -> None:
    assert TokenFile(GOLDEN / "megatron-u2").documents.tolist() == [0, 2, 4]
    assert TokenFile(GOLDEN / "fairseq-u2").documents.tolist() == []


@pytest.mark.parametrize("name", ["fairseq-u2", "fairseq-u4"])
def test_our_index_is_fairseqs_byte_for_byte(name: str, tmp_path: Path) -> None:
    with (tmp_path / "ours.idx").open("wb") as file:
        write_index(file, [SIZES[:1], SIZES[1:]], dtype=np.dtype("<" + name[-2:]), layout="fairseq")
    assert (tmp_path / "ours.idx").read_bytes() == (GOLDEN / f"{name}.idx").read_bytes()


def test_our_megatron_index_differs_only_in_its_documents(tmp_path: Path) -> None:
    with (tmp_path / "ours.idx").open("wb") as file:
        write_index(file, [SIZES], dtype=np.dtype("<u2"), layout="megatron")
    ours = (tmp_path / "ours.idx").read_bytes()
    theirs = (GOLDEN / "megatron-u2.idx").read_bytes()
    assert ours[:26] == theirs[:26]
    assert ours[34 : 34 + 12 * 4] == theirs[34 : 34 + 12 * 4]
    assert np.frombuffer(ours[34 + 12 * 4 :], "<i8").tolist() == [0, 1, 2, 3, 4]
    assert int.from_bytes(ours[26:34], "little") == 5
