"""Changes that people make on purpose when they resume: declared, none is an alarm; undeclared,
those that cannot be a mistake of loading are told as facts.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from resume_loops import SAVED, Loop, Net, first_start, resume
from torch import nn


class Change(NamedTuple):
    """One change, and how it is declared."""

    make: Callable[[Loop], None]
    parts: tuple[str, ...]
    """What is declared."""
    is_fact: bool = True
    """Whether it is told as a fact if it is not declared. Otherwise it looks like a mistake."""
    kind: type[Loop] = Loop
    data_from: int = SAVED


class WithAdapter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(8, 8, bias=False)


class AdapterLoop(Loop):
    def make_model(self) -> Net:
        return WithAdapter()


class MomentumLoop(Loop):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)


def set_rate(rate: float) -> Callable[[Loop], None]:
    def change(loop: Loop) -> None:
        loop.load()
        loop.optimizer.param_groups[0]["lr"] = rate
        loop.scheduler.base_lrs = [rate]

    return change


def begin_the_schedule_again(loop: Loop) -> None:
    first = loop.optimizer.param_groups[0]["lr"]
    loop.load(without=("scheduler",))
    loop.optimizer.param_groups[0]["lr"] = first


def freeze(*layers: str) -> Callable[[Loop], None]:
    def change(loop: Loop) -> None:
        loop.load()
        for layer in layers:
            loop.model.get_submodule(layer).requires_grad_(requires_grad=False)

    return change


def stop_the_statistics(loop: Loop) -> None:
    loop.load()
    loop.model.norm.eval()


def train_without_dropout(loop: Loop) -> None:
    loop.load()
    loop.model.eval()


def take_other_rows(loop: Loop) -> None:
    loop.load()
    loop.rows = torch.randint(0, 30, loop.rows.shape, generator=torch.Generator().manual_seed(9))


def take_more_rows(loop: Loop) -> None:
    """Twice as many, shuffled anew."""
    loop.load()
    generator = torch.Generator().manual_seed(8)
    rows = torch.cat([loop.rows, torch.randint(0, 30, loop.rows.shape, generator=generator)])
    loop.rows = rows[torch.randperm(len(rows), generator=generator)]


def begin_a_new_head(loop: Loop) -> None:
    loop.load()
    nn.init.zeros_(loop.model.head.weight)


def shrink_the_weights(loop: Loop) -> None:
    loop.load()
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.mul_(0.5)


def train_in_bfloat16(loop: Loop) -> None:
    loop.model.bfloat16()
    loop.load()


def load_beside_the_adapter(loop: Loop) -> None:
    loop.load(without=("model", "optimizer"))
    state = torch.load(loop.folder / f"{SAVED}.pt", weights_only=True)
    loop.model.load_state_dict(state["model"], strict=False)


def set_the_scale(loop: Loop) -> None:
    loop.load()
    loop.scaler.load_state_dict({**loop.scaler.state_dict(), "scale": 8.0})


def change_the_seed(loop: Loop) -> None:
    loop.load()
    torch.manual_seed(99)


def without(*parts: str) -> Callable[[Loop], None]:
    return lambda loop: loop.load(without=parts)


CHANGES = {
    "a higher rate": Change(set_rate(0.03), ("rate",)),
    "a lower rate": Change(set_rate(1e-4), ("rate",)),
    "no rate": Change(set_rate(0.0), ("rate",)),
    "a warm restart": Change(begin_the_schedule_again, ("schedule",), is_fact=False),
    "a frozen embedding": Change(freeze("embedding"), ("trainable",)),
    "only the head is trained": Change(freeze("embedding", "norm"), ("trainable",)),
    "statistics that stand still": Change(stop_the_statistics, ("mode",)),
    "no dropout": Change(train_without_dropout, ("mode", "generators"), is_fact=False),
    "other data": Change(take_other_rows, ("data",)),
    "more data": Change(take_more_rows, ("data",)),
    "data from the beginning": Change(Loop.load, ("data",), is_fact=False, data_from=0),
    "a stretch of data left out": Change(Loop.load, ("data",), data_from=SAVED + 9),
    "a fresh optimizer": Change(without("optimizer"), ("moments", "rate"), is_fact=False),
    "another optimizer": Change(without("optimizer"), ("moments", "rate"), True, MomentumLoop),
    "a new head": Change(begin_a_new_head, ("weights",), is_fact=False),
    "smaller weights": Change(shrink_the_weights, ("weights",), is_fact=False),
    "bfloat16": Change(train_in_bfloat16, ("weights", "moments")),
    "an adapter": Change(
        load_beside_the_adapter, ("weights", "moments", "rate", "generators"), False, AdapterLoop
    ),
    "another scale": Change(set_the_scale, ("scaler",)),
    "a fresh scaler": Change(without("scaler"), ("scaler",), is_fact=False),
    "another seed": Change(change_the_seed, ("generators",), is_fact=False),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went past its checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    first_start(folder)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to resume in."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", CHANGES)
def test_a_declared_change_is_no_alarm(folder: Path, name: str) -> None:
    change = CHANGES[name]
    report = resume(
        folder, change.make, kind=change.kind, data_from=change.data_from, expect=change.parts
    )
    assert {finding.status for finding in report.findings} <= {"same", "expected"}
    expected = {finding.what for finding in report.findings if finding.status == "expected"}
    assert set(change.parts) & expected


@pytest.mark.parametrize("name", [name for name, change in CHANGES.items() if change.is_fact])
def test_a_change_that_is_not_declared_is_a_fact(folder: Path, name: str) -> None:
    change = CHANGES[name]
    report = resume(folder, change.make, kind=change.kind, data_from=change.data_from)
    assert not report.lost
    changed = {finding.what for finding in report.findings if finding.status == "changed"}
    assert set(change.parts) & changed
