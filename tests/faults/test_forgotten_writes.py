"""A disk that forgets at a crash what was not synced: the worst a power cut does, over every writer
(fault 3).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from fault_injection import KILLED, disk_calls_of, fault_at, kill, run_in_child

from sonde.checkpoint.store import CheckpointStore
from sonde.data.skip_list import SkipList, append_entries, read_skip_list
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.manifest import Manifest, read_manifest, write_manifest
from sonde.records.reader import read_records


@contextlib.contextmanager
def forgetful_disk() -> Iterator[Callable[[], None]]:
    """Gives a function that makes every file forget the bytes that were not synced, as a power cut
    may; renames stay, which is worse.
    """
    # by inode: a descriptor that stays open, and how many bytes are safe
    synced: dict[int, tuple[int, int]] = {}
    real_open = disk.open_file
    real_sync = disk.fsync

    def open_file(path: os.PathLike[str] | str, flags: int, mode: int = 0o777) -> int:
        descriptor = real_open(path, flags, mode)
        if flags & (os.O_WRONLY | os.O_RDWR):
            found = os.fstat(descriptor)
            synced.setdefault(found.st_ino, (os.dup(descriptor), found.st_size))
        return descriptor

    def fsync(descriptor: int) -> None:
        real_sync(descriptor)
        found = os.fstat(descriptor)
        if found.st_ino in synced:
            synced[found.st_ino] = (synced[found.st_ino][0], found.st_size)

    def forget() -> None:
        for descriptor, num_bytes in synced.values():
            os.ftruncate(descriptor, num_bytes)

    with mock.patch.object(disk, "open_file", open_file), mock.patch.object(disk, "fsync", fsync):
        yield forget


def _cut_at(position: int, action: Callable[[], object]) -> None:
    """Run `action` in a child whose power goes at the disk call number `position`."""

    def act() -> None:
        with forgetful_disk() as forget:

            def die(
                operation: str, real: Callable[..., object], arguments: tuple[object, ...]
            ) -> None:
                forget()
                kill(operation, real, arguments)

            with fault_at(position, die):
                action()

    assert run_in_child(act) == KILLED


def _manifest(root: Path, number: int) -> None:
    write_manifest(root, Manifest(run_id=f"run-{number}", created=float(number)))


def _checkpoint(root: Path, step: int) -> None:
    CheckpointStore(root).save(step, {"model": {"w": torch.full((1000,), float(step))}})


def _skip(root: Path, number: int) -> None:
    append_entries(root / "skip.txt", SkipList({"train": [number]}))


def _newest(root: Path) -> object:
    store = CheckpointStore(root)
    step, _ = store.folder.newest()
    assert step is not None
    return int(store.load(step)["model"]["w"][0])


@pytest.mark.fault(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "read", "states"),
    [
        (_manifest, lambda root: read_manifest(root).run_id, ("run-1", "run-2")),
        (_checkpoint, _newest, (1, 2)),
        (
            _skip,
            lambda root: read_skip_list(root / "skip.txt").samples("train").tolist(),
            ([1], [1, 2]),
        ),
    ],
    ids=["manifest", "checkpoint", "skip list"],
)
def test_after_a_power_cut_there_is_the_old_content_or_the_new(
    tmp_path: Path,
    write: Callable[[Path, int], None],
    read: Callable[[Path], object],
    states: tuple[object, object],
) -> None:
    (tmp_path / "count").mkdir()
    write(tmp_path / "count", 1)
    total = len(disk_calls_of(lambda: write(tmp_path / "count", 2)))
    for position in range(total):
        root = tmp_path / str(position)
        root.mkdir()
        write(root, 1)
        # bound now, for this position
        _cut_at(position, lambda root=root: write(root, 2))  # type: ignore[misc]
        assert read(root) in states, f"power cut at call {position} of {total}"


@pytest.mark.fault(3)
def test_after_a_power_cut_records_are_whole_up_to_the_last_sync(tmp_path: Path) -> None:
    path = tmp_path / "log.rank0.jsonl"

    def act() -> None:
        with RecordFile(path) as file:
            file.append_many([{"step": step} for step in range(5)])
            file.sync()
            file.append_many([{"step": step} for step in range(5, 9)])

    total = len(disk_calls_of(act))
    path.unlink()
    _cut_at(total - 1, act)
    assert [record["step"] for record in read_records(path)] == [0, 1, 2, 3, 4]
    with RecordFile(path) as file:
        file.append({"step": 5})
    assert [record["step"] for record in read_records(path)] == [0, 1, 2, 3, 4, 5]
