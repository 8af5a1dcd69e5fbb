"""A training that sonde's trainer did not make: with its own states, batches and updates it is
replayed and diagnosed like any other.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from sonde.errors import SettingError
from sonde.forensics.diagnose import diagnose
from sonde.forensics.replay import Replay
from sonde.forensics.seams import (
    BatchSource,
    Change,
    Losses,
    ModuleWatch,
    Name,
    Row,
    SampleLoss,
    Seams,
)
from sonde.run import Run
from sonde.train.settings import Precision
from sonde.train.step import StepResult

NUM_STEPS = 60
BAD_STEP = 45
BAD_ROW = 3


class OwnLoop:
    """A loop as people write them: a model, an optimizer, a function of a batch."""

    precision: Precision = "float32"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Linear(4, 1)
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.kept: dict[int, Mapping[str, Any]] = {}

    def steps(self) -> list[int]:
        return sorted(self.kept)

    def is_good(self, step: int) -> bool:
        return step in self.kept

    def load(self, step: int) -> Mapping[str, Any]:
        return copy.deepcopy(self.kept[step])

    def collect(self) -> Mapping[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def scheduled_rate(self, step: int) -> float | None:
        return None

    def update(
        self, step: int, batches: Sequence[Any], change: Change, watch: ModuleWatch | None
    ) -> StepResult:
        with watch.on(self.model) if watch else nullcontext():
            losses = self._losses(batches[0])
            losses.mean().backward()
        norm = float(
            nn.utils.get_total_norm(
                [
                    parameter.grad
                    for parameter in self.model.parameters()
                    if parameter.grad is not None
                ]
            )
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult(loss=losses.mean().item(), weight=float(len(losses)), grad_norm=norm)

    def losses(
        self,
        step: int,
        batches: Sequence[Any],
    ) -> Losses:
        losses = self._losses(batches[0]).detach()
        samples = [
            SampleLoss(("own", int(name)), float(loss), 1, None)
            for name, loss in zip(batches[0][0], losses, strict=True)
        ]
        return Losses(float(losses.mean()), [samples])

    def _losses(self, batch: Any) -> torch.Tensor:
        found: torch.Tensor = (self.model(batch[1]).squeeze(-1) - batch[2]) ** 2
        return found


class KeptBatches(BatchSource):
    @override
    def at(self, step: int) -> list[Any]:
        source = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 4, generator=source)
        targets = inputs.sum(1) + 0.3 * torch.randn(8, generator=source)
        if step == BAD_STEP:
            targets[BAD_ROW] += 40.0
        return [(torch.arange(8) + 8 * step, inputs, targets)]

    @override
    def rows(self, batch: Any) -> list[Row]:
        return [Row(("own", int(number)), [0]) for number in batch[0]]

    @override
    def without(self, batch: Any, names: Collection[Name]) -> Any:
        kept = torch.tensor([("own", int(number)) not in names for number in batch[0]])
        return tuple(row[kept] for row in batch)


def train(directory: Path) -> Seams:
    loop = OwnLoop()
    batches = KeptBatches()
    with Run(directory) as run:
        for step in range(1, NUM_STEPS + 1):
            if step % 20 == 1:
                loop.kept[step - 1] = copy.deepcopy(loop.collect())
            made = loop.update(step, batches.at(step), Change(), None)
            record = {
                "type": "STEP",
                "step": step,
                "epoch": 1,
                "loss": made.loss,
                "weight": made.weight,
                "lr": 1e-2,
            }
            run.records("steps").append({**record, "grad_norm": made.grad_norm})
    return Seams(states=loop, batches=batches, updater=loop)


def test_a_loop_of_ones_own_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    replay = Replay(tmp_path, seams=train(tmp_path))
    for step in (NUM_STEPS, 22, 41):
        assert replay.go_to(step) == (step - 1) // 20 * 20
        recorded = replay.recorded(step)
        assert recorded is not None
        assert replay.update().loss == recorded.loss
    assert replay.deviations == []


def test_a_state_that_nobody_kept_is_asked_for(tmp_path: Path) -> None:
    seams = train(tmp_path)
    assert isinstance(seams.states, OwnLoop)
    del seams.states.kept[0]
    with pytest.raises(SettingError, match="no state from before step 5"):
        Replay(tmp_path, seams=seams).go_to(5)


def test_a_bad_row_of_a_loop_of_ones_own_is_named(tmp_path: Path) -> None:
    verdict = diagnose(tmp_path, BAD_STEP, seams=train(tmp_path))
    assert verdict.replay is not None
    assert verdict.replay.reproduced
    first = verdict.causes[0]
    assert first.cause == "hard_sample"
    assert [suspect.sample for suspect in first.suspects] == [8 * BAD_STEP + BAD_ROW]
