import gzip
from pathlib import Path

import pytest
import zstandard

from sonde.data.text_blocks import BAD_KINDS, TextBlock, cut_blocks, read_block, split_lines
from sonde.errors import DamagedFile, SettingError

TEXT = "".join(f"line {number} {'x' * (number % 7)}\n" for number in range(200)).encode()


def whole(path: Path, block_bytes: int) -> list[bytes]:
    return [read_block(block) for block in cut_blocks(path, block_bytes)]


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1000, 10**6])
@pytest.mark.parametrize("kind", ["plain", "gz", "zst", "two members", "two frames"])
@pytest.mark.parametrize("last_newline", [True, False])
def test_blocks_are_whole_lines_and_together_the_file(
    tmp_path: Path, block_bytes: int, kind: str, last_newline: bool
) -> None:
    text = TEXT if last_newline else TEXT[:-1]
    half = len(text) // 2
    packed = {
        "plain": text,
        "gz": gzip.compress(text),
        "zst": zstandard.compress(text),
        "two members": gzip.compress(text[:half]) + gzip.compress(text[half:]),
        "two frames": zstandard.compress(text[:half]) + zstandard.compress(text[half:]),
    }[kind]
    path = tmp_path / "text"
    path.write_bytes(packed)
    blocks = whole(path, block_bytes)
    assert b"".join(blocks) == text
    assert all(block.endswith(b"\n") for block in blocks[:-1])
    assert sum(block.num_file_bytes for block in cut_blocks(path, block_bytes)) == len(packed)


def test_an_empty_file_has_no_blocks(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    assert whole(tmp_path / "text", 10) == []


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_torn_archive_is_an_error_and_not_a_short_text(
    tmp_path: Path, kind: str, kept: float
) -> None:
    packed = gzip.compress(TEXT) if kind == "gz" else zstandard.compress(TEXT)
    path = tmp_path / "text"
    path.write_bytes(packed[: int(len(packed) * kept)])
    with pytest.raises(DamagedFile, match="cannot be decompressed"):
        whole(path, 100)


def test_only_a_newline_ends_a_line() -> None:
    lines, wrong = split_lines("a b\rc d\ne\u2028f\x0bg\x85h\x1ci\n".encode(), 100)
    assert lines == ["a b\rc d", "e\u2028f\x0bg\x85h\x1ci"]
    assert not wrong.any()


def test_windows_line_ends_are_line_ends() -> None:
    assert split_lines(b"a\r\nb\r\n", 100).lines == ["a", "b"]


def test_bad_lines_are_found_by_kind_and_number() -> None:
    lines, wrong = split_lines(
        b"good\n\n" + b" " * 12 + b"\nbr\xffken\n" + b"x" * 11 + b"\n" + b"\xff" * 12 + b"\nlast",
        10,
    )
    assert BAD_KINDS == ("bad UTF-8", "empty", "over-long")
    assert wrong.tolist() == [0, 2, 2, 1, 3, 1, 0]
    assert lines[3] == "br\ufffdken"
    assert len(lines) == 7


def test_a_last_newline_adds_no_line() -> None:
    for content, expected in ((b"a\nb", 2), (b"a\nb\n", 2), (b"\n", 1), (b"a\rb\n", 1)):
        assert len(split_lines(content, 100).lines) == expected


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no file"):
        cut_blocks(tmp_path / "nothing", 10)


def test_a_text_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"ab\n")
    with pytest.raises(DamagedFile, match="shorter"):
        read_block(TextBlock(path=str(path), start=0, end=10, num_file_bytes=10))


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "endless"
    piece = bytes(1 << 20)
    num_pieces = 70
    if kind == "plain":
        with path.open("wb") as file:
            file.truncate(num_pieces * len(piece))
    else:
        with gzip.open(path, "wb", 1) if kind == "gz" else zstandard.open(path, "wb") as file:
            for _ in range(num_pieces):
                file.write(piece)
    with pytest.raises(DamagedFile, match="a line of 64 MB or more"):
        list(cut_blocks(path, 1 << 20))
