"""What grows before a spike: measured without changing a bit, logged, and evidence at an event."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.errors import SettingError
from sonde.forensics.case import open_case
from sonde.forensics.evidence import Evidence
from sonde.forensics.judge import judge_replay
from sonde.forensics.precursors import what_preceded
from sonde.forensics.verdict import read_verdict
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.report.run_curves import RunCurves
from sonde.run import Run


class Small(nn.Module):
    """A model with a hidden and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.hidden = nn.Linear(8, 16)
        self.output = nn.Linear(16, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.output(torch.tanh(self.hidden(inputs)))
        return scores


def train(
    model: Small,
    folder: Path,
    num_steps: int,
    *,
    vitals: bool,
    growing: bool = False,
    breaks_at: int = 0,
) -> None:
    """Train; the output layer's weights may grow, and the weights may break at a step."""
    groups = [{"params": model.hidden.parameters()}, {"params": model.output.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4)
    dice = torch.Generator().manual_seed(1)
    options = RecorderOptions(vitals=vitals, state_every=0)
    with Run(folder) as run, Recorder(run, model, optimizer, options=options) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            inputs, targets = batch
            loss = recorder.loss(F.cross_entropy(model(inputs), targets))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for step in range(1, num_steps + 1):
            inputs = torch.randn(32, 8, generator=dice)
            with torch.no_grad():
                if growing:
                    model.output.weight *= 1.004
                if step == breaks_at:
                    model.hidden.weight *= 30
                    model.output.weight *= 30
            recorder.step(train_step, (inputs, inputs[:, :4].argmax(1)))


def test_the_weights_are_the_same_with_and_without_vitals(tmp_path: Path) -> None:
    weights = []
    for vitals in (False, True):
        model = Small()
        train(model, tmp_path / str(vitals), 120, vitals=vitals)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_vitals_are_right_and_logged_beside_the_loss(tmp_path: Path) -> None:
    model = Small()
    train(model, tmp_path / "run", 50, vitals=True)
    values = read_steps(tmp_path / "run").by_number[50].values
    names = {"update_norm", "update_ratio", "output_norm", "clipped_share"}
    assert names | {"grad_norm.group0", "grad_norm.group1"} == set(values)
    assert values["output_norm"] == pytest.approx(float(model.output.weight.detach().norm()))
    assert values["clipped_share"] == 1.0
    total = values["grad_norm.group0"] ** 2 + values["grad_norm.group1"] ** 2
    assert total**0.5 == pytest.approx(0.01, rel=1e-2)
    size = sum(float(parameter.detach().square().sum()) for parameter in model.parameters()) ** 0.5
    assert values["update_ratio"] == pytest.approx(values["update_norm"] / size, rel=1e-2)
    drawn = RunCurves(tmp_path / "run")
    for name, value in values.items():
        assert drawn.read(f"train.{name}").values.tolist() == pytest.approx([value])


def test_nothing_is_measured_unless_it_is_asked_for(tmp_path: Path) -> None:
    train(Small(), tmp_path / "run", 50, vitals=False)
    assert not read_steps(tmp_path / "run").by_number[50].values


@pytest.mark.parametrize("growing", [True, False])
def test_weights_that_had_grown_are_evidence_at_an_event(tmp_path: Path, growing: bool) -> None:
    train(Small(), tmp_path / "run", 460, vitals=True, growing=growing, breaks_at=455)
    verdict = read_verdict(tmp_path / "run", 455)
    words = " ".join(verdict.causes[0].evidence)
    assert ("had doubled" in words) is growing
    case = open_case(tmp_path / "run", 455)
    causes = judge_replay(Evidence(case, SettingError("this loop cannot be run again")))
    words = " ".join(causes[0].evidence)
    assert ("had doubled" in words) is growing


def grown(**values: list[float]) -> list[tuple[int, dict[str, float]]]:
    columns = {name.replace("__", "."): column for name, column in values.items()}
    num = len(next(iter(columns.values())))
    return [
        (50 * place + 50, {name: column[place] for name, column in columns.items()})
        for place in range(num)
    ]


@pytest.mark.parametrize(
    ("vitals", "num_told"),
    [
        (grown(output_norm=[1, 1.2, 1.5, 1.9, 2.3]), 1),
        (grown(output_norm=[1, 1.2, 1.3, 1.4, 1.5]), 0),
        (grown(update_norm=[1, 1.1, 0.9, 1, 3.5]), 1),
        (grown(update_norm=[1, 1.1, 0.9, 1, 2.5]), 0),
        (grown(clipped_share=[0, 0.05, 0, 0.02, 0.7]), 1),
        (grown(clipped_share=[0.6, 0.7, 0.6, 0.7, 0.7]), 0),
        (grown(grad_norm__group0=[1, 1, 1, 1, 9], grad_norm__group1=[1, 1, 1, 1, 1]), 1),
        (grown(grad_norm__group0=[1, 1, 1, 1, 9], grad_norm__group1=[1, 1, 1, 1, 8]), 0),
    ],
)
def test_only_what_has_grown_is_said(
    vitals: list[tuple[int, dict[str, float]]], num_told: int
) -> None:
    assert len(what_preceded(vitals, 260)) == num_told
