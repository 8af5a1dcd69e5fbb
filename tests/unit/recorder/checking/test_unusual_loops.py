"""Loops that look wrong at first sight and are right, beside their wrong twins."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.forensics.checks.check_report import CheckReport
from sonde.recorder.recorder import Recorder

NUM_MICRO = 4


class Adapter(nn.Module):
    """A frozen layer and a small one beside it that begins at 0, with dropout before it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(10, 6).requires_grad_(requires_grad=False)
        self.down = nn.Linear(10, 2, bias=False)
        self.up = nn.Parameter(torch.zeros(6, 2))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        scores: Tensor = self.base(x) + self.down(self.dropout(x)) @ self.up.t()
        return scores


class Reader(nn.Module):
    """Reads tokens with positions in the first dimension, forwards or both ways."""

    def __init__(self, *, both_ways: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.mixer = nn.GRU(16, 16, bidirectional=both_ways)
        self.head = nn.Linear(32 if both_ways else 16, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for every position."""
        scores: Tensor = self.head(self.mixer(self.embedding(tokens))[0])
        return scores


def rows_of_numbers() -> list[tuple[Tensor, Tensor]]:
    """Inputs, and which of them are positive."""
    generator = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(8):
        inputs = torch.randn(16, 10, generator=generator)
        batches.append((inputs, (inputs[:, :6] > 0).float()))
    return batches


def checked(
    run: Path,
    model: nn.Module,
    loss_of: Callable[[Any], Tensor],
    batches: Sequence[Any] | None = None,
) -> CheckReport:
    """Check a loop that calls `loss_of`, which calls backward, once for each update."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(batch)
        optimizer.step()
        return loss.detach()

    with Recorder(run, model, optimizer) as recorder:
        return recorder.check(batches or rows_of_numbers(), step)


def status(report: CheckReport, name: str) -> str:
    return next(result.status for result in report.results if result.name == name)


@pytest.mark.parametrize("acts", [True, False])
def test_dropout_before_weights_that_are_all_zero_acts(tmp_path: Path, acts: bool) -> None:
    torch.manual_seed(1)
    model = Adapter()
    gain = 1.0 if acts else 0.0

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        base = model.base(batch[0])
        loss = F.mse_loss(base + gain * (model(batch[0]) - base), batch[1])
        loss.backward()
        return loss

    assert status(checked(tmp_path, model, loss_of), "dropout") == ("fine" if acts else "wrong")


@pytest.mark.parametrize(("divisor", "expected"), [(NUM_MICRO, "fine"), (1, "wrong")])
def test_micro_batches_of_a_loss_without_classes_are_weighed(
    tmp_path: Path, divisor: int, expected: str
) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 6)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = torch.zeros(())
        parts = zip(batch[0].chunk(NUM_MICRO), batch[1].chunk(NUM_MICRO), strict=True)
        for inputs, targets in parts:
            loss = F.binary_cross_entropy_with_logits(model(inputs), targets)
            (loss / divisor).backward()
        return loss

    assert status(checked(tmp_path, model, loss_of), "accumulation") == expected


def test_two_losses_of_one_batch_are_no_micro_batches(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 6)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        real = F.binary_cross_entropy_with_logits(model(batch[0]), torch.ones(16, 6))
        real.backward()
        fake = F.binary_cross_entropy_with_logits(model(-batch[0]), torch.zeros(16, 6))
        fake.backward()
        return real + fake

    assert status(checked(tmp_path, model, loss_of), "accumulation") == "does not apply"


@pytest.mark.parametrize(("both_ways", "expected"), [(True, set()), (False, {"label_shift"})])
def test_targets_that_are_the_inputs_do_not_hide_which_dimension_the_rows_are_in(
    tmp_path: Path, both_ways: bool, expected: set[str]
) -> None:
    torch.manual_seed(1)
    model = Reader(both_ways=both_ways)
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randint(0, 40, (14, 9), generator=generator) for _ in range(8)]

    def loss_of(tokens: Tensor) -> Tensor:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        return loss

    report = checked(tmp_path, model, loss_of, batches)
    assert {result.name for result in report.wrong} == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [((0, 0, 1, 1, 2, 2, 3, 3), "wrong"), ((0, 1, 2, 3, 0, 1, 2, 3), "fine")],
)
def test_batches_that_come_again_before_the_data_are_over_are_named(
    tmp_path: Path, order: tuple[int, ...], expected: str
) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 6)
    known = rows_of_numbers()
    batches = [tuple(part.clone() for part in known[number]) for number in order]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1].argmax(1))
        loss.backward()
        return loss

    report = checked(tmp_path, model, loss_of, batches)
    assert status(report, "repeated_rows") == expected


class Mixer(nn.Module):
    """Predicts the next token, with a leak: from other rows at the same position, or from later
    positions.
    """

    def __init__(self, leak: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.head = nn.Linear(16, 40)
        self._dim = {"rows": 0, "positions": 1}[leak]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores for every position."""
        seen = self.embedding(tokens)
        scores: Tensor = self.head(seen + seen.mean(self._dim, keepdim=True))
        return scores


@pytest.mark.parametrize(
    ("leak", "causality", "rows"), [("rows", "fine", "wrong"), ("positions", "wrong", "fine")]
)
def test_a_leak_between_rows_is_not_called_a_look_at_later_tokens(
    tmp_path: Path, leak: str, causality: str, rows: str
) -> None:
    torch.manual_seed(1)
    model = Mixer(leak)
    batches = [torch.randint(0, 40, (6, 17)) for _ in range(8)]

    def loss_of(batch: Tensor) -> Tensor:
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        return loss

    report = checked(tmp_path, model, loss_of, batches)
    assert (status(report, "causality"), status(report, "rows_apart")) == (causality, rows)


@pytest.mark.parametrize(("is_column", "expected"), [(True, "wrong"), (False, "does not apply")])
def test_a_difference_that_compares_each_prediction_with_each_target_is_wrong(
    tmp_path: Path, is_column: bool, expected: str
) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 1)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        prediction = model(batch[0])
        if not is_column:
            prediction = prediction.squeeze(1)
        loss: Tensor = ((prediction - batch[1][:, 0]) ** 2).mean()
        loss.backward()
        return loss

    assert status(checked(tmp_path, model, loss_of), "loss_inputs") == expected


def test_gradients_that_a_loop_assigns_itself_are_not_said_to_pile_up(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 6)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.mse_loss(model(batch[0]), batch[1])
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    assert status(checked(tmp_path, model, loss_of), "left_over_gradients") == "cannot tell"


@pytest.mark.parametrize(
    ("made_by", "expected"),
    [
        (lambda scores: scores, "wrong"),
        (lambda scores: scores.softmax(1), "wrong"),
        (lambda scores: scores.log_softmax(1), "fine"),
    ],
)
def test_what_nll_loss_is_given_must_be_logarithms_of_probabilities(
    tmp_path: Path, made_by: Callable[[Tensor], Tensor], expected: str
) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 6)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.nll_loss(made_by(model(batch[0])), batch[1].argmax(1))
        loss.backward()
        return loss

    assert status(checked(tmp_path, model, loss_of), "loss_inputs") == expected


def test_a_scaler_that_still_looks_for_its_scale_is_no_mistake(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(10, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # the first updates are skipped

    def step(batch: tuple[Tensor, Tensor], last: bool = True) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            scores = model(batch[0])
        loss = F.binary_cross_entropy_with_logits(scores.float(), batch[1])
        scaler.scale(loss / 2).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    with Recorder(tmp_path, model, optimizer, scaler=scaler) as recorder:
        for number, batch in enumerate(rows_of_numbers()):
            recorder.step(step, batch, last=number % 2 == 1)
        report = recorder.check(rows_of_numbers())
    assert {result.name for result in report.wrong} == set()
    assert scaler.get_scale() < 2.0**40


@pytest.mark.parametrize("is_dead", [True, False])
def test_gradients_that_are_always_zero_are_named(tmp_path: Path, is_dead: bool) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    model.append(nn.Linear(16, 6))
    if is_dead:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    adapted = Adapter()  # its gradients are 0 at the first update only
    for trained, is_wrong in ((model, is_dead), (adapted, False)):

        def loss_of(batch: tuple[Tensor, Tensor], trained: nn.Module = trained) -> Tensor:
            loss = F.binary_cross_entropy_with_logits(trained(batch[0]), batch[1])
            loss.backward()
            return loss

        report = checked(tmp_path / type(trained).__name__, trained, loss_of)
        assert ("gradient_reach" in {result.name for result in report.wrong}) is is_wrong
