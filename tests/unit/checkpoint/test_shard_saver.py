"""Sharded saves: training waits for the copy alone, no later value is written, and no rank that
fails or dies harms what was there.
"""

import errno
import json
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fault_injection import failing, faults_of, kill_after
from rank_group import run_ranks
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from sonde.checkpoint.folder import SHARD_FOLDER, About, CheckpointFolder, Keep
from sonde.checkpoint.state import TensorImage, own_part, part_name
from sonde.checkpoint.store import BackgroundSaver, CheckpointStore

pytestmark = pytest.mark.slow


def sharded_state(value: float, num_rows: int = 5) -> dict[str, Any]:
    """Rows in parts, a vector that every rank holds whole, and a plain tensor."""
    mesh = init_device_mesh("cpu", (2,))

    def spread(tensor: torch.Tensor, placement: Placement) -> DTensor:
        return distribute_tensor(tensor, mesh, [placement])

    return {
        "rows": spread(torch.full((num_rows, 3), value), Shard(0)),
        "one": spread(torch.full((1, 2), value), Shard(0)),
        "all": spread(torch.full((4,), value), Replicate()),
        "plain": torch.full((2,), value),
        "step": int(value),
    }


def overwrite(state: dict[str, Any]) -> None:
    for value in state.values():
        if isinstance(value, torch.Tensor):
            (value.to_local() if isinstance(value, DTensor) else value).fill_(-1)


def assert_holds(directory: Path, step: int) -> None:
    state = CheckpointStore(directory).load(step)
    assert state.pop("step") == step
    assert {name: tuple(tensor.shape) for name, tensor in state.items()}["rows"] == (5, 3)
    assert all(bool((tensor == step).all()) for tensor in state.values())


def test_training_waits_for_the_copy_alone_and_no_later_value_is_in_the_file(
    tmp_path: Path,
) -> None:
    def slow(_: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        time.sleep(0.5)
        return real(*arguments)

    def work(rank: int) -> Any:
        saver = BackgroundSaver(CheckpointStore(tmp_path), Keep())
        blocked = []
        for step in (1, 2):
            state = sharded_state(step)
            saver.wait()
            dist.barrier()
            with faults_of("write", slow):
                began = time.monotonic()
                saver.save(step, state, About())
                blocked.append(time.monotonic() - began)
                overwrite(state)
                saver.wait()
        return blocked, [outcome.step for outcome in saver.finished()]

    (blocked, told), (blocked_there, told_there) = run_ranks(2, work)
    assert max(blocked + blocked_there) < 0.4
    assert (told, told_there) == ([1, 2], [])
    for step in (1, 2):
        assert_holds(tmp_path, step)
    parts = sorted(path.name for path in (tmp_path / "step-000000000002" / SHARD_FOLDER).iterdir())
    assert parts == [part_name(0), part_name(1)]


def test_a_script_may_destroy_the_process_group_while_the_parts_are_written(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        begun = threading.Event()
        destroyed = threading.Event()

        def waiting(_: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
            begun.set()
            destroyed.wait(20)
            return real(*arguments)

        saver = BackgroundSaver(CheckpointStore(tmp_path), Keep())
        state = sharded_state(1)
        with faults_of("write", waiting):
            saver.save(1, state, About())
            begun.wait(20)
            dist.destroy_process_group()
            destroyed.set()
            saver.wait()
        return [outcome.error for outcome in saver.finished()]

    assert run_ranks(2, work) == [[None], []]
    assert_holds(tmp_path, 1)


def test_a_rank_that_is_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        store = CheckpointStore(tmp_path)
        store.save(1, sharded_state(1))
        saver = BackgroundSaver(store, Keep())
        state = sharded_state(2)
        with faults_of("write", kill_after) if rank == 1 else nullcontext():
            saver.save(2, state, About())
            saver.wait()
        return [outcome.error for outcome in saver.finished()]

    ((error,),) = run_ranks(2, work, killed=[1])
    assert "rank 0 lost rank 1 of 2" in error
    assert CheckpointFolder(tmp_path).newest() == (1, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001"]
    assert_holds(tmp_path, 1)


@pytest.mark.parametrize(("broken", "operation"), [(0, "write"), (1, "write"), (1, "fsync")])
def test_a_rank_that_cannot_write_its_part_says_so_and_the_next_save_works(
    tmp_path: Path, broken: int, operation: str
) -> None:
    def work(rank: int) -> Any:
        saver = BackgroundSaver(CheckpointStore(tmp_path), Keep())
        with faults_of(operation, failing(errno.ENOSPC)) if rank == broken else nullcontext():
            saver.save(1, sharded_state(1), About())
            saver.wait()
        errors = [outcome.error for outcome in saver.finished()]
        dist.barrier()
        saver.save(2, sharded_state(2), About())
        saver.wait()
        return errors, [outcome.error for outcome in saver.finished()]

    (errors, later), (errors_there, later_there) = run_ranks(2, work)
    assert [len(told) for told in (errors, errors_there)] == [1, 1]
    assert all(
        f"rank {broken}: " in told and "No space left" in told
        for told in (errors[0], errors_there[0])
    )
    assert (later, later_there) == ([None], [])
    assert CheckpointFolder(tmp_path).newest() == (2, {})


def test_a_part_has_the_header_that_torch_writes(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        tensors = {
            name: value for name, value in sharded_state(3).items() if isinstance(value, DTensor)
        }
        save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(tmp_path), save_distributed=True),
        )
        part, header = own_part(tensors, {})
        theirs = _header((tmp_path / part_name(rank)).read_bytes())
        ours = _header(bytes(TensorImage().fill(part, header)))
        marks = [document.pop("__metadata__") for document in (ours, theirs)]
        places = [json.loads(mark.pop("DCP_SHARDING_INFO")) for mark in marks]
        shared = sorted(part.keys() & places[1].keys())
        assert marks[0] == marks[1]
        assert [places[0][name] for name in shared] == [places[1][name] for name in shared]
        return shared, sorted(part)

    (shared, ours), (_, ours_there) = run_ranks(2, work)
    assert ours == ["all", "one", "rows"]
    assert "rows" in shared
    assert ours_there == ["rows"]  # the rest is whole on rank 0


def test_a_rank_outside_the_mesh_of_a_tensor_saves_none_of_it(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        alone = distribute_tensor(torch.full((4, 2), 1.0), DeviceMesh("cpu", [0]), [Shard(0)])
        CheckpointStore(tmp_path).save(1, {"alone": alone, **sharded_state(1)})

    run_ranks(2, work)
    assert_holds(tmp_path, 1)


def _header(content: bytes) -> Any:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
