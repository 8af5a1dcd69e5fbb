"""The probe in several processes: rank filters, a late init, forks, and kill -9."""

import functools
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_group import run_ranks

from sonde.probe import PrecisionDebugger
from sonde.probe.dump import find_dumps, read_dump

pytestmark = pytest.mark.slow


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child, which has torch loaded already; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001  the parent hears of it by the status
        traceback.print_exc()
    finally:
        os._exit(status)


def data_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "debug.json").read_bytes())["data"]
    return document


@pytest.mark.parametrize(
    ("chosen", "expected"), [([0], ["rank0"]), (["1-5"], ["rank1"]), ([], ["rank0", "rank1"])]
)
def test_bug_01_the_rank_filter_is_honoured(
    tmp_path: Path, chosen: list[Any], expected: list[str]
) -> None:
    def work(rank: int) -> int:
        debugger = PrecisionDebugger(dump_path=tmp_path, rank=chosen)
        value = torch.full((2,), float(rank), requires_grad=True)
        debugger.save(value, "x")
        value.sum().backward()
        dist.barrier()
        debugger.close()
        return dist.get_rank()

    assert run_ranks(2, work) == [0, 1]
    assert sorted(path.name for path in (tmp_path / "step0").iterdir()) == expected
    for name in expected:
        assert data_of(tmp_path / "step0" / name)["x.0.debug"]["Max"] == float(name[-1])
        assert data_of(tmp_path / "step0" / name)["x_grad.0.debug"]["Max"] == 1.0


def test_a_dtensor_is_described_by_its_shard(tmp_path: Path) -> None:
    def work(rank: int) -> dict[str, Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2,))
        whole = torch.arange(8.0).reshape(4, 2)
        debugger = PrecisionDebugger(dump_path=tmp_path, task="tensor")
        debugger.save(distribute_tensor(whole, mesh, [Shard(0)]), "x", save_backward=False)
        debugger.close()
        leaf: dict[str, Any] = data_of(tmp_path / "step0" / f"rank{rank}")["x.0.debug"]
        return leaf

    for rank, leaf in enumerate(run_ranks(2, work)):
        assert leaf["type"] == "torch.distributed.tensor.DTensor"
        assert (leaf["shape"], leaf["local_shape"], leaf["device_mesh"]) == ([4, 2], [2, 2], [0, 1])
        assert leaf["placements"] == ["Shard(dim=0)"]
        assert (leaf["Max"], leaf["Min"]) == (3.0 + 4 * rank, 4.0 * rank)
        assert leaf["data_name"] == "x.0.tensor.pt"


def save_around_init(folder: Path, rank: int) -> None:
    debugger = PrecisionDebugger(dump_path=folder / "dump", rank=[0, 1])
    debugger.save(torch.full((2,), float(rank)), "before", save_backward=False)
    debugger.stop()
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    debugger.save(torch.full((2,), float(rank)), "after", save_backward=False)
    for _ in range(2):  # a rank that the other had guessed is free a step later
        dist.barrier()
        debugger.step()
    debugger.close()
    dist.destroy_process_group()


def test_bug_14_an_init_after_the_first_save_splits_nothing(tmp_path: Path) -> None:
    pids = [fork(functools.partial(save_around_init, tmp_path, rank)) for rank in (0, 1)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "dump" / "step0").iterdir()) == [
        "rank0",
        "rank1",
    ]
    for rank in (0, 1):
        data = data_of(tmp_path / "dump" / "step0" / f"rank{rank}")
        assert {key: leaf["Max"] for key, leaf in data.items()} == {
            "before.0.debug": rank,
            "after.0.debug": rank,
        }
    assert not list((tmp_path / "dump").rglob("*lock*"))


def test_bug_17_a_fork_writes_beside_its_parent(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    try:
        debugger.save(1, "parent", save_backward=False)
        pid = os.fork()
        if pid == 0:
            PrecisionDebugger.save(2, "child", save_backward=False)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        debugger.save(3, "parent", save_backward=False)
    finally:
        debugger.close()
    assert list(read_dump(tmp_path / "step0" / "rank").data) == [
        "parent.0.debug",
        "parent.1.debug",
    ]
    assert list(read_dump(tmp_path / "step0" / f"proc{pid}").data) == ["child.0.debug"]


def _work_in_a_child(value: int) -> int:
    PrecisionDebugger.save(value, "child", save_backward=False)
    return os.getpid()


def test_the_workers_of_a_pool_lose_nothing(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path)
    try:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pids = pool.map(_work_in_a_child, range(10), chunksize=1)
    finally:
        debugger.close()
    found = [
        leaf["value"]
        for pid in set(pids)
        for leaf in read_dump(tmp_path / "step0" / f"proc{pid}").leaves().values()
        if leaf is not None
    ]
    assert sorted(found) == list(range(10))


def save_forever(folder: Path, pipe: int) -> None:
    debugger = PrecisionDebugger(dump_path=folder, task="tensor")
    weight = torch.ones(100, requires_grad=True)
    for number in itertools.count(1):
        debugger.save({"number": number - 1, "weight": weight * (number - 1)}, "x")
        (weight * 2).sum().backward()
        if number % 100 == 0:
            debugger.step()
        elif number % 50 == 0:
            debugger.stop()
        if number % 50 == 0:
            os.write(pipe, b"%d\n" % number)


def kill_while_saving(folder: Path, num_lines: int) -> int:
    """Kill a saving process after that many flushes; returns how many values were flushed for
    certain.
    """
    reading, writing = os.pipe()
    pid = fork(functools.partial(save_forever, folder, writing))
    os.close(writing)
    with os.fdopen(reading) as lines:
        num_flushed = max(int(lines.readline()) for _ in range(num_lines))
        time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return num_flushed


@pytest.mark.parametrize("num_lines", [1, 3, 6])
def test_a_kill_loses_at_most_the_last_flush(tmp_path: Path, num_lines: int) -> None:
    num_flushed = kill_while_saving(tmp_path, num_lines)
    dumps = [read_dump(path) for path in find_dumps(tmp_path).values()]
    trees = [tree for dump in dumps for key, tree in dump.data.items() if key.startswith("x.")]
    assert [tree["number"]["value"] for tree in trees][:num_flushed] == list(range(num_flushed))
    for dump in dumps:
        for key, tree in dump.data.items():
            if key.startswith("x."):
                assert dump.load(tree["weight"]).tolist() == [float(tree["number"]["value"])] * 100


def test_the_place_of_a_killed_run_is_free_again(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, 1)
    debugger = PrecisionDebugger(dump_path=tmp_path)
    debugger.save(1, "again", save_backward=False)
    debugger.close()
    assert list(data_of(tmp_path / "step0" / "rank")) == ["again.0.debug"]


def test_an_uncaught_exception_still_writes_everything(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from sonde.probe import PrecisionDebugger
        PrecisionDebugger(dump_path=sys.argv[1])
        PrecisionDebugger.save({"loss": 0.5}, "x")
        raise ValueError("the training's own")
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "the training's own" in done.stderr
    assert list(data_of(tmp_path / "step0" / "rank")) == ["x.0.debug", "x_grad.0.debug"]
