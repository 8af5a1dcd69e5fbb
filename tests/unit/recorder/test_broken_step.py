"""Where the numbers of a step break: found in a loop of one's own, before the optimizer moves."""

import contextlib
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.errors import TrainingStopped
from sonde.forensics.verdict import Cause, read_verdict
from sonde.recorder.options import OnEvent
from sonde.recorder.recorder import Recorder

BAD = 40


class BadBackward(torch.autograd.Function):
    """A kernel whose backward is wrong for large inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs().max() > 50, torch.nan, 1.0) * gradients[0]


class Kernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return BadBackward.apply(x)  # type: ignore[no-any-return,no-untyped-call]


class Net(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.middle = middle
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.middle(self.first(x)))
        return y


def train(
    folder: Path,
    middle: nn.Module,
    spoil: Callable[[Tensor, Net], None],
    on_event: OnEvent = "record",
) -> Net:
    """Train for some steps; at step BAD the batch or the model is spoilt."""
    model = Net(middle)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    drawn = torch.Generator().manual_seed(1)
    with Recorder(folder, model, optimizer, on_event=on_event) as recorder:

        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = recorder.loss(F.mse_loss(model(batch[0]), batch[1]))
            loss.backward()
            optimizer.step()
            return loss

        for number in range(1, BAD + 1):
            x = torch.randn(8, 4, generator=drawn)
            if number == BAD:
                spoil(x, model)
            recorder.step(step, (x, x.sum(1, keepdim=True)))
    return model


def verdict(folder: Path) -> Cause:
    return read_verdict(folder, BAD).causes[0]


def make_large(x: Tensor, model: Net) -> None:
    del model
    x[3] = 500.0


def test_a_backward_that_gives_nan_from_a_finite_forward_is_named_by_module_and_operation(
    tmp_path: Path,
) -> None:
    train(tmp_path, Kernel(), make_large)
    first = verdict(tmp_path)
    assert (first.cause, first.module) == ("bad_operation", "middle")
    assert any("BadBackward" in sentence for sentence in first.evidence)


class WhenLarge(nn.Module):
    """Does something to large inputs only."""

    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(x) if x.abs().max() > 50 else x


class InfiniteBackward(torch.autograd.Function):
    """A kernel whose backward overflows: no NaN anywhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0].abs() + torch.inf


def attends_to_nothing(x: Tensor) -> Tensor:
    """A softmax whose first row has no position left, after a causal mask that is as it should
    be.
    """
    scores = (x @ x.t()).masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    weights = scores.masked_fill(torch.eye(8).bool()[0], -torch.inf).softmax(-1)
    return weights @ x


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (InfiniteBackward.apply, "InfiniteBackward"),
        (lambda x: x + torch.sqrt(x * 0), "SqrtBackward"),
        (lambda x: torch.where(x > 1e9, torch.log(x - x), x), "LogBackward"),
        (lambda x: torch.exp(x * 500) / torch.exp(x * 500).sum(), "exp"),
        (lambda x: (x * 0) / (x * 0).norm(dim=-1, keepdim=True), "div"),
        (attends_to_nothing, "softmax"),
    ],
)
def test_the_operation_is_named_with_its_line_whether_it_gives_nan_or_infinite_numbers(
    tmp_path: Path, operation: Callable[[Tensor], Tensor], name: str
) -> None:
    train(tmp_path, WhenLarge(operation), make_large)
    first = verdict(tmp_path)
    assert first.module == "middle"
    told = next(sentence for sentence in first.evidence if "comes from" in sentence)
    operation_told, _, line = told.partition(", made by ")
    assert name in operation_told
    assert Path(__file__).name in line


@pytest.mark.parametrize("on_event", ["skip", "stop"])
def test_weights_are_not_touched_by_a_gradient_that_is_not_finite(
    tmp_path: Path, on_event: OnEvent
) -> None:
    trained: list[Net] = []
    before: list[Tensor] = []

    def spoil(x: Tensor, model: Net) -> None:
        trained.append(model)
        before.extend(weight.detach().clone() for weight in model.parameters())
        make_large(x, model)

    with contextlib.suppress(TrainingStopped):  # which "stop" raises
        train(tmp_path, Kernel(), spoil, on_event)
    after = trained[0].parameters()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_the_line_is_found_in_a_folder_that_is_called_as_we_are(tmp_path: Path) -> None:
    script = tmp_path / "sonde" / "torch" / "kernels.py"
    script.parent.mkdir(parents=True)
    script.write_text("import torch\n\n\ndef root(x):\n    return x + torch.sqrt(x * 0)\n")
    root = runpy.run_path(str(script))["root"]
    train(tmp_path / "run", WhenLarge(root), make_large)
    told = " ".join(read_verdict(tmp_path / "run", BAD).causes[0].evidence)
    assert "kernels.py:5" in told


def test_a_batch_with_nan_is_named_by_its_rows(tmp_path: Path) -> None:
    def spoil(x: Tensor, model: Net) -> None:
        del model
        x[5, 2] = torch.nan

    train(tmp_path, nn.ReLU(), spoil)
    first = verdict(tmp_path)
    assert first.cause == "bad_input"
    assert any("1 of 8 rows" in sentence for sentence in first.evidence)


def test_weights_that_broke_between_two_steps_are_named(tmp_path: Path) -> None:
    def spoil(x: Tensor, model: Net) -> None:
        del x
        with torch.no_grad():
            model.last.weight[0, 0] = torch.inf

    train(tmp_path, nn.ReLU(), spoil)
    first = verdict(tmp_path)
    assert (first.cause, first.module) == ("bad_weights", "last.weight")


@pytest.mark.parametrize("num_values", [1, 32])
def test_one_absurd_value_of_a_weight_is_told_from_weights_that_grew(
    tmp_path: Path, num_values: int
) -> None:
    def spoil(x: Tensor, model: Net) -> None:
        del x
        with torch.no_grad():
            model.first.weight.view(-1)[:num_values] = 1e37

    train(tmp_path, nn.Softplus(), spoil)
    first = verdict(tmp_path)
    assert (first.cause == "bad_weights") is (num_values == 1)
    assert num_values > 1 or first.module == "first.weight"


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(60 - x.abs())


class HalfScores(nn.Module):
    """Multiplies in float16, without autocast."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = (x.half() * 3000).float() / 3000
        return scores


def test_an_operation_that_overflows_in_half_precision_of_its_own_is_an_overflow(
    tmp_path: Path,
) -> None:
    def spoil(x: Tensor, model: Net) -> None:
        del model
        x *= 1000

    train(tmp_path, HalfScores(), spoil)
    assert verdict(tmp_path).cause == "overflow"


def test_a_batch_in_which_no_target_counts_is_told_as_such(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    drawn = torch.Generator().manual_seed(1)
    with Recorder(tmp_path, model, optimizer) as recorder:

        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = recorder.loss(F.cross_entropy(model(batch[0]), batch[1]))
            loss.backward()
            optimizer.step()
            return loss

        for number in range(1, BAD + 1):
            labels = torch.randint(3, (8,), generator=drawn)
            if number == BAD:
                labels.fill_(-100)
            recorder.step(step, (torch.randn(8, 4, generator=drawn), labels))
    first = verdict(tmp_path)
    assert first.cause == "no_targets"
    assert "targets" in first.evidence[0]


def test_a_forward_that_gives_nan_from_moderate_numbers_is_named_by_module(tmp_path: Path) -> None:
    train(tmp_path, Log(), make_large)
    first = verdict(tmp_path)
    assert (first.cause, first.module) == ("bad_operation", "middle")


def test_an_overflow_of_half_precision_is_told_from_a_bad_operation(tmp_path: Path) -> None:
    model = Net(nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    drawn = torch.Generator().manual_seed(1)
    with Recorder(tmp_path, model, optimizer) as recorder:

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = recorder.loss(model(batch).square().mean())
            loss.backward()
            optimizer.step()
            return loss

        for number in range(1, BAD + 1):
            x = torch.randn(8, 4, generator=drawn)
            recorder.step(step, x * 1e6 if number == BAD else x)
    first = verdict(tmp_path)
    assert (first.cause, first.setting) == ("overflow", "precision")
    assert any("in float32 instead of float16" in sentence for sentence in first.evidence)
