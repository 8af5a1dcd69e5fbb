"""`recorder.check` in a notebook: it finds what is wrong, and leaves no trace."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.errors import SettingError
from sonde.recorder.recorder import Recorder


class Model(nn.Module):
    """Dropout, batch statistics and a recurrent layer: all that a check may disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.layer = nn.GRU(16, 16, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next tokens."""
        hidden = self.dropout(self.layer(self.embedding(tokens))[0])
        scores: Tensor = self.head(hidden + 0 * self.norm(hidden.transpose(1, 2)).transpose(1, 2))
        return scores


class Loop:
    """A training with a scheduler, a scaler and a counter of its own."""

    def __init__(self, run: Path, *, shift: int = 1) -> None:
        torch.manual_seed(5)
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=60)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        self.num_calls = 0
        self.shift = shift
        self.recorder = Recorder(
            run, self.model, self.optimizer, scheduler=self.scheduler, scaler=self.scaler
        )

    def step(self, tokens: Tensor) -> float:
        """Do all that happens to one batch."""
        self.num_calls += 1
        length = tokens.shape[1] - self.shift
        scores = self.model(tokens)[:, :length]
        targets = tokens[:, self.shift :]
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten()) + 1e-3 * self.num_calls
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return float(loss.detach())


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(0, 40, (6, 12), generator=generator) for _ in range(count)]


def trained(run: Path, *, check_at: tuple[int, ...]) -> tuple[list[float], list[Tensor], Tensor]:
    loop = Loop(run)
    data = batches(16)
    losses = []
    for number, batch in enumerate(data):
        if number in check_at:
            loop.recorder.check(data[:8], loop.step)
        losses.append(loop.recorder.step(loop.step, batch))
    loop.recorder.close()
    state = [*loop.model.state_dict().values(), torch.tensor(loop.scaler.get_scale())]
    return losses, state, torch.get_rng_state()


@pytest.mark.slow
def test_training_after_a_check_is_the_same_to_the_bit(tmp_path: Path) -> None:
    losses, state, generator = trained(tmp_path / "a", check_at=())
    checked_losses, checked_state, checked_generator = trained(tmp_path / "b", check_at=(0, 3, 11))

    assert losses == checked_losses
    assert all(torch.equal(*pair) for pair in zip(state, checked_state, strict=True))
    assert torch.equal(generator, checked_generator)


@pytest.mark.slow
def test_a_right_loop_is_not_called_wrong_and_the_report_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path / "run")

    report = loop.recorder.check(batches(8), loop.step)
    loop.recorder.close()

    assert report.wrong == ()
    assert capsys.readouterr().out == report.text()


@pytest.mark.slow
def test_labels_that_are_not_shifted_are_named(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", shift=0)

    report = loop.recorder.check(batches(8), loop.step)
    loop.recorder.close()

    assert [result.name for result in report.wrong] == ["label_shift"]


def test_a_check_without_a_step_function_is_refused(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")

    with pytest.raises(SettingError):
        loop.recorder.check(batches(2))
    with pytest.raises(SettingError):
        loop.recorder.check([], loop.step)
    loop.recorder.close()


@pytest.mark.slow
def test_an_experiment_that_fails_becomes_cannot_tell(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    calls = tmp_path / "calls"  # a file is not put back
    calls.touch()

    def fails_later(tokens: Tensor) -> float:
        with calls.open("a") as file:
            file.write("call\n")
        if calls.read_text().count("call") > 20:
            raise RuntimeError("no more")
        return loop.step(tokens)

    report = loop.recorder.check(batches(8), fails_later)
    loop.recorder.close()

    assert report.wrong == ()
    assert report.of("cannot tell")


def test_a_hidden_state_that_a_step_passes_on_is_put_back(tmp_path: Path) -> None:
    torch.manual_seed(3)
    cell = nn.GRUCell(4, 6)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    recorder = Recorder(tmp_path / "run", cell, optimizer)
    hidden = torch.zeros(5, 6)

    def train_step(batch: Tensor) -> Tensor:
        nonlocal hidden
        hidden = cell(batch, hidden.detach())
        loss: Tensor = hidden.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = hidden
    report = recorder.check([torch.randn(5, 4) for _ in range(8)], train_step)
    recorder.close()

    states = {result.name: result.status for result in report.results}
    assert hidden is before
    assert states["determinism"] == "fine"


class Normalised(nn.Module):
    """A regression that keeps the mean of its inputs."""

    mean: Tensor

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.always = always
        self.register_buffer("mean", torch.zeros(4))
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one number for each row."""
        if self.training or self.always:
            self.mean.lerp_(inputs.mean(0), 0.1)
        found: Tensor = self.head(inputs - self.mean)
        return found


@pytest.mark.parametrize(("always", "status"), [(True, "wrong"), (False, "fine")])
def test_statistics_that_evaluation_changes_are_named(
    tmp_path: Path, always: bool, status: str
) -> None:
    model = Normalised(always=always)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(tmp_path / "run", model, optimizer)

    def train_step(batch: Tensor) -> Tensor:
        loss = F.mse_loss(model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = recorder.check([torch.randn(8, 4) + 1 for _ in range(8)], train_step)
    recorder.close()

    results = {result.name: result for result in report.results}
    assert results["evaluation_buffers"].status == status
    assert results["start_loss"].status == "fine"
    assert bool((model.mean == 0).all())
