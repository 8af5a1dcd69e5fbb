"""How long training stands still for a checkpoint of 200 MB: sonde beside torch.save, safetensors
and DCP's asynchronous save.

A save blocks until training may change its tensors again: wall time, and CPU time of the training
thread, which a busy machine disturbs less. The yardstick is the copy of the state in memory: into
buffers that are there already, and into new ones. After each save of ours the tensors are changed
at once, and the file is checked for later values. The state in parts is that of one rank which
holds all of it: what ranks of a larger group wait for one another depends on the machine.
"""

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sonde.checkpoint.folder import About, Keep
from sonde.checkpoint.store import BackgroundSaver, CheckpointStore

# 200 MB of float32
NUM_TENSORS = 20
NUM_VALUES = 2_500_000
NUM_ROUNDS = 7
GATE = 1.2


def make_state() -> dict[str, Tensor]:
    return {
        f"layer.{number}.weight": torch.full((NUM_VALUES,), 1.0) for number in range(NUM_TENSORS)
    }


Blocked = tuple[float, float]


def now() -> Blocked:
    return time.perf_counter(), time.thread_time()


def since(started: Blocked) -> Blocked:
    wall, cpu = now()
    return wall - started[0], cpu - started[1]


class Contenders:
    """Each method saves once, and returns what it blocked: wall and CPU seconds of this thread."""

    def __init__(self, folder: Path) -> None:
        self.state = make_state()
        self.folder = folder
        self.step = 0
        self.buffers = {name: tensor.clone() for name, tensor in self.state.items()}
        self.saver = BackgroundSaver(CheckpointStore(folder / "sonde"), Keep(newest=2))
        self.sharded_saver = BackgroundSaver(CheckpointStore(folder / "sharded"), Keep(newest=2))
        mesh = init_device_mesh("cpu", (1,))
        self.sharded_state = {
            name: distribute_tensor(tensor.clone(), mesh, [Shard(0)])
            for name, tensor in self.state.items()
        }
        self.num_later = 0

    def copy(self) -> Blocked:
        started = now()
        for name, tensor in self.state.items():
            self.buffers[name].copy_(tensor)
        return since(started)

    def clone(self) -> Blocked:
        started = now()
        copies = [tensor.clone() for tensor in self.state.values()]
        seconds = since(started)
        del copies
        return seconds

    def sonde(self) -> Blocked:
        self.step += 1
        for tensor in self.state.values():
            tensor.fill_(self.step)
        started = now()
        self.saver.save(self.step, {"model": self.state}, About())
        seconds = since(started)
        for tensor in self.state.values():
            tensor.fill_(-1)
        self.saver.wait()
        assert all(outcome.error is None for outcome in self.saver.finished())
        loaded = CheckpointStore(self.folder / "sonde").load(self.step)["model"]
        self.num_later += sum(int((tensor != self.step).sum()) for tensor in loaded.values())
        return seconds

    def sonde_sharded(self) -> Blocked:
        self.step += 1
        for part in self.sharded_state.values():
            part.to_local().fill_(self.step)
        started = now()
        self.sharded_saver.save(self.step, {"model": self.sharded_state}, About())
        seconds = since(started)
        for part in self.sharded_state.values():
            part.to_local().fill_(-1)
        self.sharded_saver.wait()
        assert all(outcome.error is None for outcome in self.sharded_saver.finished())
        loaded = CheckpointStore(self.folder / "sharded").load(self.step)["model"]
        self.num_later += sum(int((tensor != self.step).sum()) for tensor in loaded.values())
        return seconds

    def torch_save(self) -> Blocked:
        started = now()
        torch.save(self.state, self.folder / "torch.pt")
        return since(started)

    def safetensors(self) -> Blocked:
        started = now()
        save_file(self.state, self.folder / "state.safetensors")
        return since(started)

    def dcp_async(self) -> Blocked:
        self.step += 1
        started = now()
        future = async_save(self.state, checkpoint_id=self.folder / f"dcp{self.step % 2}")
        seconds = since(started)
        future.result()  # type: ignore[union-attr]
        return seconds


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        dist.init_process_group("gloo", init_method=f"file://{name}/store", rank=0, world_size=1)
        contenders = Contenders(Path(name))
        rows: dict[str, Callable[[], Blocked]] = {
            "copy into buffers": contenders.copy,
            "copy into new memory": contenders.clone,
            "sonde": contenders.sonde,
            "sonde, in parts (FSDP2)": contenders.sonde_sharded,
            "torch.save": contenders.torch_save,
            "safetensors": contenders.safetensors,
            "DCP async_save": contenders.dcp_async,
        }
        times: dict[str, list[Blocked]] = {row: [] for row in rows}
        for number in range(NUM_ROUNDS + 1):
            for row, save in rows.items():
                blocked = save()
                if number:  # the first allocates
                    times[row].append(blocked)
        dist.destroy_process_group()
    walls = {row: sorted(1000 * wall for wall, _ in values) for row, values in times.items()}
    cpus = {row: min(1000 * cpu for _, cpu in values) for row, values in times.items()}
    print(f"{'200 MB':24}{'best ms':>10}{'median ms':>12}{'CPU ms':>9}{'x copy':>9}")
    for row in rows:
        ratio = cpus[row] / cpus["copy into buffers"]
        print(
            f"{row:24}{walls[row][0]:10.1f}{statistics.median(walls[row]):12.1f}{cpus[row]:9.1f}{ratio:9.2f}"
        )
    for row in ("sonde", "sonde, in parts (FSDP2)"):
        ratio = cpus[row] / cpus["copy into buffers"]
        print(
            f"{row}: gate {GATE} x the copy in memory: {ratio:.2f},"
            f" {'met' if ratio <= GATE else 'MISSED'}"
        )
    print(f"later values in {2 * (NUM_ROUNDS + 1)} files: {contenders.num_later}")


if __name__ == "__main__":
    main()
