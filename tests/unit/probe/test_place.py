"""Which folder a process writes to."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from sonde.probe.step_dump import Rank, Seat, move_folder, prepare_folder
from sonde.records.lock import current_owner


def held_by(path: Path, pid: int) -> None:
    """A lock that another living process of this machine holds."""
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    path.write_text(json.dumps(asdict(current_owner()) | {"pid": pid, "process_start": start}))


def test_a_process_that_nobody_numbered_is_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert Seat(tmp_path, os.getpid()).rank() == Rank(0, True, is_numbered=False)
    assert Seat(tmp_path, os.getpid() + 1).rank() == Rank(0, False, is_numbered=False)


@pytest.mark.parametrize("name", ["RANK", "RANK_ID"])
def test_the_launchers_number_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "5")
    assert Seat(tmp_path, os.getpid()).rank() == Rank(5, True)


def test_a_rank_that_a_living_process_has_taken_is_left_to_it(tmp_path: Path) -> None:
    held_by(tmp_path / "rank0.lock.json", os.getppid())
    seat = Seat(tmp_path, os.getpid())
    assert seat.folder_name() == f"proc{os.getpid()}"
    (tmp_path / "rank0.lock.json").unlink()
    assert seat.folder_name() == "rank"
    seat.release()
    assert not list(tmp_path.iterdir())


def test_a_rank_that_becomes_known_later_is_taken_and_the_guess_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = Seat(tmp_path, os.getpid())
    assert seat.folder_name() == "rank"
    monkeypatch.setenv("RANK", "3")
    assert seat.folder_name() == "rank3"
    assert [path.name for path in tmp_path.iterdir()] == ["rank3.lock.json"]


def test_a_folder_that_becomes_rank_0_is_called_rank0_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = Seat(tmp_path, os.getpid())
    assert seat.folder_name() == "rank"
    monkeypatch.setenv("RANK", "0")
    assert seat.folder_name() == "rank0"


def test_the_link_that_sonde_0_2_made_is_replaced_by_a_folder(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "rank0")
    (tmp_path / "rank0" / "debug.json").write_text("old")
    (tmp_path / "rank").symlink_to("rank0", target_is_directory=True)
    prepare_folder(tmp_path / "rank")
    assert not (tmp_path / "rank").is_symlink()
    assert (tmp_path / "rank0" / "debug.json").read_text() == "old"


def test_only_what_the_probe_writes_is_removed_from_an_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    prepare_folder(folder)
    for name in ("probe.jsonl", "debug.json", "notes.txt"):
        (folder / name).write_text("")
    prepare_folder(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_folder_moves_unless_somebodys_files_are_in_the_way(tmp_path: Path) -> None:
    before = tmp_path / "proc1"
    after = tmp_path / "rank1"
    prepare_folder(before)
    (before / "probe.jsonl").write_text("x")
    prepare_folder(after)
    (after / "notes.txt").write_text("mine")
    assert not move_folder(before, after)
    (after / "notes.txt").unlink()
    assert move_folder(before, after)
    assert (after / "probe.jsonl").read_text() == "x"
