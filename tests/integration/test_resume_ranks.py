"""A resume on several ranks: with the model whole on each (DDP) or in parts (FSDP2), on as many
ranks as before and on another number.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rank_group import run_ranks
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.checkpoint.resume_report import ResumeReport, read_reports
from sonde.recorder.recorder import Recorder

pytestmark = pytest.mark.slow

SAVED = 4
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(32, 8)
        self.head = nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.embedding(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())


def train(rank: int, folder: Path, kind: str, start: int, without_optimizer: int) -> None:
    """Train on one rank; `without_optimizer` is the rank that does not load its state. A resume
    declares that the number of ranks may be another one.
    """
    model: Any = Net()
    if kind == "FSDP2":
        fully_shard(model)
    elif ranks.world_size() > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = torch.randint(0, 32, (160, 6), generator=torch.Generator().manual_seed(2))
    recorder = Recorder(folder / "run", model, optimizer, sample_ids=lambda batch: batch[1])
    saved = folder / "saved.pt"
    if start:
        state = torch.load(saved, weights_only=True)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=WHOLE,
        )
        if rank == without_optimizer:
            optimizer.state.clear()
        recorder.num_updates = start
        recorder.expect("ranks")

    def step(batch: tuple[Tensor, list[int]]) -> Tensor:
        loss: Tensor = model(batch[0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for number in range(start, start + SAVED + 1):
        numbers = torch.arange(number * 12 + rank, (number + 1) * 12, ranks.world_size())
        recorder.step(step, (rows[numbers], numbers.tolist()))
        if number + 1 == SAVED:
            weights, moments = get_state_dict(model, optimizer, options=WHOLE)
            if rank == 0:
                torch.save({"model": weights, "optimizer": moments}, saved)
            recorder.checkpoint(saved)
    recorder.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of two ranks of each kind, which went past its checkpoint."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("DDP", "FSDP2")}
    for kind, folder in folders.items():
        run_ranks(2, partial(train, folder=folder, kind=kind, start=0, without_optimizer=-1))
    return folders


def resumed(folder: Path, kind: str, world_size: int, without_optimizer: int = -1) -> ResumeReport:
    work = partial(
        train, folder=folder, kind=kind, start=SAVED, without_optimizer=without_optimizer
    )
    run_ranks(world_size, work)
    (report,) = read_reports(folder / "run")
    return report


@pytest.mark.parametrize(
    ("kind", "world_size"), [("DDP", 2), ("DDP", 3), ("FSDP2", 1), ("FSDP2", 2), ("FSDP2", 3)]
)
def test_an_exact_resume_on_any_number_of_ranks_raises_no_alarm(
    trained: dict[str, Path], tmp_path: Path, kind: str, world_size: int
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained[kind], folder)
    report = resumed(folder, kind, world_size)
    others = [(finding.what, finding.status) for finding in report.findings]
    others = [other for other in others if other[1] != "same"]
    assert others == ([] if world_size == 2 else [("ranks", "expected")])


@pytest.mark.parametrize(("kind", "world_size"), [("DDP", 2), ("FSDP2", 1)])
def test_a_rank_that_lost_its_moments_is_named(
    trained: dict[str, Path], tmp_path: Path, kind: str, world_size: int
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained[kind], folder)
    rank = world_size - 1
    report = resumed(folder, kind, world_size, without_optimizer=rank)
    assert {"moments", "step count"} <= {finding.what for finding in report.lost}
    found = report.finding("moments")
    assert found is not None
    assert ("rank 1" in found.text) == (rank == 1)
