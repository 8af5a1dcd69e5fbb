"""Checkpoints: whole or refused."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from sonde.checkpoint.folder import Keep
from sonde.checkpoint.store import CheckpointStore
from sonde.errors import DamagedFile, SettingError


def training_state() -> dict[str, object]:
    """What a real loop saves: weights, AdamW, generators, counters."""
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": {
            "python": random.getstate(),
            "numpy": np.random.default_rng(1).bit_generator.state,
            "torch": torch.get_rng_state(),
        },
        "counters": {
            "updates": 3,
            "seconds": 1.5,
            "best": float("inf"),
            "name": "é",
            "raw": b"\x00\xff",
            "none": None,
        },
    }


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(equal(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def test_a_real_training_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    state = training_state()
    assert store.save(3, state) == tmp_path / "checkpoints" / "step-000000000003"
    loaded = store.load(3)
    assert equal(state, loaded)
    assert list(loaded["optimizer"]["state"]) == [0, 1]


def test_every_dtype_comes_back(tmp_path: Path) -> None:
    state: dict[str, object] = {
        str(dtype): torch.ones(2, 2).to(dtype)
        for dtype in (
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int8,
            torch.bool,
            torch.float8_e4m3fn,
        )
    }
    state |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "view": torch.arange(6).view(2, 3).t(),
    }
    store = CheckpointStore(tmp_path)
    store.save(1, state)
    loaded = store.load(1)
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert isinstance(tensor, torch.Tensor)
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].tolist() == tensor.tolist()


def test_tied_tensors_are_written_once_and_tied_again(tmp_path: Path) -> None:
    weight = torch.randn(100, 100)
    store = CheckpointStore(tmp_path)
    store.save(1, {"embed": weight, "output": weight})
    assert (
        Path(store.folder.at(1).where) / "tensors.safetensors"
    ).stat().st_size < 1.5 * weight.nbytes
    loaded = store.load(1)
    assert loaded["embed"] is loaded["output"]


def test_names_that_would_meet_are_kept_apart(tmp_path: Path) -> None:
    state = {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1)}
    store = CheckpointStore(tmp_path)
    store.save(1, state)
    assert equal(store.load(1), state)


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": {"b": [1, object()]}}, "a/b/1"),
        ({"x": np.float32(1)}, "x"),
        ({"x": {1, 2}}, "x"),
        ({"s": torch.zeros(2, 2).to_sparse()}, "s"),
        ({"@tensor": 1}, "@tensor"),
    ],
)
def test_what_cannot_be_written_is_refused_at_save_time_with_its_place(
    tmp_path: Path, state: dict[str, object], place: str
) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(SettingError, match=place):
        store.save(1, state)
    assert store.folder.steps() == []


@pytest.mark.parametrize("name", ["state.json", "tensors.safetensors", "checksums.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, training_state())
    store.save(2, training_state())
    path = Path(store.folder.at(2).where) / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(DamagedFile, match="step-000000000002"):
        store.load(2)
    newest, rejected = store.folder.newest()
    assert newest == 1
    assert list(rejected) == [2]


def test_a_checkpoint_under_another_name_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": 1})
    Path(store.folder.at(1).where).rename(Path(store.folder.at(9).where))
    with pytest.raises(DamagedFile, match="not the state after 9 steps"):
        store.load(9)


def test_pruning_keeps_the_newest_and_the_protected_and_what_is_not_ours(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3, 4, 10):
        store.save(step, {"step": step})
    (tmp_path / "step-1").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert store.folder.prune(Keep(newest=2), protected={2}) == [1, 3]
    assert store.folder.steps() == [2, 4, 10]
    assert sorted(
        entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("step-0")
    ) == [
        "notes.txt",
        "step-1",
    ]


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_or_fewer_keeps_all(tmp_path: Path, keep: int) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {})
    store.save(2, {})
    assert store.folder.prune(Keep(newest=keep)) == []
    assert store.folder.steps() == [1, 2]


def test_nothing_is_removed_when_the_newest_does_not_verify(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, {"step": step})
    (Path(store.folder.at(2).where) / "state.json").write_bytes(b"{}")
    assert store.folder.prune(Keep(newest=1)) == []


def test_saving_again_after_the_same_step_replaces_what_is_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": 1})
    store.save(1, {"a": 2})
    assert store.load(1) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001"]


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_saved_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": 1})
    (Path(store.folder.at(1).where) / "state.json").write_text("{}")
    store.save(1, {"a": 1})
    assert store.load(1) == {"a": 1}


def test_the_one_set_aside_is_still_found_when_the_new_one_never_came(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": 1})
    (tmp_path / "step-000000000001").rename(tmp_path / ".replaced-step-000000000001")
    assert store.folder.newest() == (1, {})
    assert store.load(1) == {"a": 1}
    store.save(1, {"a": 2})
    assert store.load(1) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001"]
