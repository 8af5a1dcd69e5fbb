"""Files that ATorch's TokenLossSpike wrote and decoded itself, decoded by ours."""

import re
from pathlib import Path

import numpy as np
import pytest

from sonde.compat.atorch.token_loss_spike import TokenLossSpike

GOLDEN = Path(__file__).parent / "data" / "loss-spikes"
PATHS = [
    ("wikipedia", GOLDEN / "in/corpus/base"),
    ("zhihu", GOLDEN / "in/tok/zhihu.lazy"),
    ("long", GOLDEN / "in/long/base"),
]


class Words:
    def decode(self, ids: list[int]) -> str:
        assert type(ids) is list
        return " ".join(f"w{token}" for token in ids)


def decode(
    folder: str,
    out: Path,
    *,
    words: bool,
    sample_len: int = 4,
    least: tuple[int, float] | None = None,
) -> list[str]:
    """The entries of the result, in its order."""
    spike = TokenLossSpike(GOLDEN / "in" / folder, PATHS, sample_len, 2000, 10)
    spike.decode_loss_spike(out, Words() if words else None, *(least or ()))
    return entries(out.read_text())


def entries(text: str) -> list[str]:
    return re.findall(r"^==========\w+  \S+================\n.*\n\n\n\n", text, re.MULTILINE)


@pytest.mark.parametrize("words", [False, True])
def test_one_file_decodes_byte_for_byte_like_atorch(tmp_path: Path, words: bool) -> None:
    decode("spikes_single", tmp_path / "out.txt", words=words)
    expected = GOLDEN / "out" / f"single_{'words' if words else 'ids'}.txt"
    assert (tmp_path / "out.txt").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize(
    ("name", "words", "least"),
    [
        ("decoded_ids", False, None),
        ("decoded_words", True, None),
        ("decoded_words_iter0_loss0", True, (0, 0)),
        ("decoded_words_iter2004_loss12", True, (2004, 12)),
    ],
)
def test_several_files_decode_like_atorch_but_in_order_of_their_names(
    tmp_path: Path, name: str, words: bool, least: tuple[int, float] | None
) -> None:
    ours = decode("spikes", tmp_path / "out.txt", words=words, least=least)
    theirs = entries((GOLDEN / "out" / f"{name}.txt").read_text())
    # ATorch took rank1.txt first, as the directory happened to list it; its entries lead until
    # rank0's first one.
    from_rank1 = next(
        place for place, entry in enumerate(theirs) if "40.05" in entry or " 5.0=" in entry
    )
    assert ours == theirs[from_rank1:] + theirs[:from_rank1]
    assert len(ours) >= 2


def test_a_long_row_is_written_whole_where_atorch_left_tokens_out(tmp_path: Path) -> None:
    (ours,) = decode("spikes_long", tmp_path / "out.txt", words=False, sample_len=2048)
    (theirs,) = entries((GOLDEN / "out" / "decoded_ids_long.txt").read_text())
    assert "..." in theirs
    header, row, *_ = ours.split("\n")
    assert header == theirs.split("\n")[0]
    assert row == "[" + " ".join(str(token) for token in range(2048, 4096)) + "]"


def test_ids_are_spaced_as_numpy_spaces_them(tmp_path: Path) -> None:
    rows = np.array([[1, 20, 300, 4000], [5, 6, 7, 8], [-1, 0, 99, 100]], np.int32)
    shard = tmp_path / "c.scatter" / "0.lazy"
    shard.mkdir(parents=True)
    rows.tofile(shard / "text")
    spike = TokenLossSpike(tmp_path / "s", [("c", tmp_path / "c")], 4, 0, 0)
    for row in range(3):
        spike.save_loss("", 5.0, 1, "1.0", f"0-0-1-1-{row}")
    spike.decode_loss_spike(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text().split("\n")[1::5][:3] == [str(row) for row in rows]
