import re
from pathlib import Path

import pytest

from sonde.data.skip_list import SkipList, append_entries, read_skip_list, write_skip_list
from sonde.errors import DamagedFile, SettingError


def test_a_file_a_person_wrote_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "skip.txt"
    path.write_text(
        "# after the spike\ntrain 20117   repeated sentence\n\ntrain\t5-7 # a document\nwiki"
        " 7\ntrain 6\n"
    )
    skip = read_skip_list(path)
    assert skip.samples("train").tolist() == [5, 6, 7, 20117]
    assert skip.samples("wiki").tolist() == [7]
    assert skip.samples("other").tolist() == []
    assert len(skip) == 5
    assert ("train", 6) in skip
    assert ("train", 8) not in skip


@pytest.mark.parametrize(
    "line", ["train", "train x", "train 5-3", "train -1", "train 0-99999999999"]
)
def test_a_line_that_is_not_understood_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "skip.txt"
    path.write_text(f"train 1\n{line}\n")
    with pytest.raises(DamagedFile, match=r"skip\.txt:2"):
        read_skip_list(path)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    skip = SkipList({"b": [3, 1, 2, 9], "a": [0]})
    write_skip_list(tmp_path / "skip.txt", skip, remark="by hand\nand head")
    text = (tmp_path / "skip.txt").read_text()
    assert re.sub(" +# crc [0-9a-f]{8}", "", text) == "# by hand\n# and head\na 0\nb 1-3\nb 9\n"
    again = read_skip_list(tmp_path / "skip.txt")
    assert {name: again.samples(name).tolist() for name in again.entries} == {
        "a": [0],
        "b": [1, 2, 3, 9],
    }


def test_appending_keeps_every_line_there_is(tmp_path: Path) -> None:
    path = tmp_path / "skip.txt"
    append_entries(path, SkipList({"a": [1]}))
    path.write_text(path.read_text() + "a 5 my remark")
    append_entries(path, SkipList({"a": [7, 8]}), remark="step 9")
    assert (
        re.sub(" +# crc [0-9a-f]{8}", "", path.read_text())
        == "a 1\na 5 my remark\n# step 9\na 7-8\n"
    )


def test_every_flipped_bit_of_an_entry_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "skip.txt"
    write_skip_list(path, SkipList({"train": [3, 13, 700, 701, 702], "corpus": [33]}))
    good = path.read_bytes()
    wanted = read_skip_list(path)
    assert b"train 700-702  # crc " in good
    for bit in range(8 * len(good)):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        try:
            found = read_skip_list(path)
        except DamagedFile:
            continue
        assert found.samples("train").tolist() == wanted.samples("train").tolist(), bytes(damaged)
        assert found.samples("corpus").tolist() == [33], bytes(damaged)


@pytest.mark.parametrize("number", [2**63, 10**30, "9" * 5000])
def test_numbers_that_no_sample_has_are_refused(tmp_path: Path, number: int | str) -> None:
    (tmp_path / "skip.txt").write_text(f"train {number}\n")
    with pytest.raises(DamagedFile, match="not an entry"):
        read_skip_list(tmp_path / "skip.txt")


def test_two_lists_join() -> None:
    both = SkipList({"a": [1, 2]}) | SkipList({"a": [2, 3], "b": [0]})
    assert both.samples("a").tolist() == [1, 2, 3]
    assert both.samples("b").tolist() == [0]


def test_names_that_would_not_survive_the_file_are_refused() -> None:
    for name in ("two words", "a#b", ""):
        with pytest.raises(SettingError):
            SkipList({name: [1]})
    with pytest.raises(SettingError, match="-1"):
        SkipList({"a": [-1]})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no skip list"):
        read_skip_list(tmp_path / "skip.txt")
