"""A save is disturbed at every disk call it makes, and a checkpoint has each of its bits at risk: a
valid one is always there.
"""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from fault_injection import (
    KILLED,
    Fault,
    disk_calls_of,
    failing,
    fault_at,
    kill,
    kill_after,
    run_in_child,
    short_write,
)

from sonde.checkpoint.folder import Keep
from sonde.checkpoint.store import CheckpointStore
from sonde.errors import DamagedFile


def state(step: int) -> dict[str, object]:
    return {
        "model": {"w": torch.full((50, 20), float(step))},
        "counters": {"num_updates": step},
        "name": "é",
    }


def save(directory: Path, step: int) -> None:
    store = CheckpointStore(directory)
    store.save(step, state(step))
    store.folder.prune(Keep(newest=1))


def loads(directory: Path, step: int) -> bool:
    loaded = CheckpointStore(directory).load(step)
    return bool(
        loaded["counters"] == {"num_updates": step} and (loaded["model"]["w"] == step).all()
    )


def newest_valid(directory: Path) -> int | None:
    return CheckpointStore(directory).folder.newest()[0]


def num_calls(tmp_path: Path, first: int, second: int) -> int:
    save(tmp_path / "count", first)
    return len(disk_calls_of(lambda: save(tmp_path / "count", second)))


FAULTS = {
    "kill": kill,
    "tear": kill_after,
    "short": short_write,
    "EIO": failing(errno.EIO),
    "ENOSPC": failing(errno.ENOSPC),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("second", [2, 1], ids=["next step", "same step again"])
def test_whatever_happens_at_any_disk_call_of_a_save_a_valid_checkpoint_is_there(
    tmp_path: Path, name: str, second: int
) -> None:
    total = num_calls(tmp_path, 1, second)
    assert total > 15
    for position in range(total):
        directory = tmp_path / f"{position}"
        save(directory, 1)
        disturbed_save(directory, second, position, FAULTS[name], dies=name in ("kill", "tear"))
        step = newest_valid(directory)
        assert step in (1, second), (
            f"no valid checkpoint after {name} at call {position} of {total}"
        )
        assert loads(directory, step)
        save(directory, 3)
        assert newest_valid(directory) == 3
        assert loads(directory, 3)
        shutil.rmtree(directory)


def disturbed_save(directory: Path, step: int, position: int, fault: Fault, *, dies: bool) -> None:
    def act() -> None:
        with fault_at(position, fault):
            save(directory, step)

    if dies:
        assert run_in_child(act) == KILLED
        return
    try:
        act()
    except OSError:
        pass


def test_nothing_is_left_behind_by_a_save_that_was_killed(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def act() -> None:
        with fault_at(10, kill):
            save(tmp_path, 2)

    assert run_in_child(act) == KILLED
    save(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000003"]


@pytest.mark.slow
def test_none_of_300_bit_flips_over_all_files_loads_silently(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, state(1))
    store.save(2, state(2))
    files = sorted(path for path in Path(store.folder.at(2).where).rglob("*") if path.is_file())
    assert [path.name for path in files] == ["checksums.json", "state.json", "tensors.safetensors"]
    chance = random.Random(1)
    for number in range(300):
        path = files[number % len(files)]
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match="step-000000000002"):
            store.load(2)
        assert store.folder.newest()[0] == 1
        path.write_bytes(content)
    assert loads(tmp_path, 2)


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "checksums.json"])
@pytest.mark.parametrize("part", [0, 1, 0.5, -2])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, part: float) -> None:
    store = CheckpointStore(tmp_path)
    store.save(2, state(2))
    path = Path(store.folder.at(2).where) / name
    size = path.stat().st_size
    os.truncate(path, size // 2 if part == 0.5 else int(part) % size)
    with pytest.raises(DamagedFile, match=name):
        store.load(2)


def test_an_extra_file_and_a_swapped_file_are_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, state(1))
    store.save(2, state(2))
    shutil.copy(
        Path(store.folder.at(1).where) / "tensors.safetensors",
        Path(store.folder.at(2).where) / "tensors.safetensors",
    )
    (Path(store.folder.at(1).where) / "extra.bin").write_bytes(b"x")
    assert "SHA-256" in store.folder.problems(2)[0]
    assert store.folder.problems(1) == ["extra.bin: not in the manifest"]
