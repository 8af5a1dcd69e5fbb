"""What docs/any-loop.md promises of the recorder, beyond the table of loops (tests/loops)."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.errors import RunError, SettingError, TrainingStopped
from sonde.records.catalog import summarise_run
from sonde.records.journal import read_events, read_steps
from sonde.spikes.spike_log import read_spikes


class BadBackward(torch.autograd.Function):
    """Finite forwards; its gradient is what it was told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bad: float) -> Tensor:
        ctx.bad = bad
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.bad, None


def spoil_gradients(x: Tensor, bad: float) -> Tensor:
    apply: Any = BadBackward.apply
    result: Tensor = apply(x, bad)
    return result


class Loop:
    """A loop whose gradients are not finite at one step, though its loss is."""

    def __init__(self, run: Path, bad: float, **arguments: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.recorder = sonde.Recorder(run, self.model, self.optimizer, **arguments)
        self.bad = bad

    def step(self, batch: Tensor, bad: float = 1.0) -> None:
        output = spoil_gradients(self.model(batch), bad)
        self.recorder.loss(output.square().mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, num: int, bad_at: int) -> None:
        for number in range(1, num + 1):
            bad = self.bad if number == bad_at else 1.0
            self.recorder.step(lambda batch, bad=bad: self.step(batch, bad), torch.randn(8, 4))

    def weights(self) -> list[Any]:
        return [parameter.tolist() for parameter in self.model.parameters()]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_stop_keeps_the_weights_good_when_only_the_gradients_are_not_finite(
    tmp_path: Path, bad: float
) -> None:
    loop = Loop(tmp_path / "run", bad, on_event="stop")
    with pytest.raises(TrainingStopped, match="the gradients are not finite at step 60"):
        loop.train(80, bad_at=60)
    loop.recorder.close()
    assert all(torch.isfinite(parameter).all() for parameter in loop.model.parameters())
    assert list(read_steps(tmp_path / "run").by_number)[-1] == 60
    assert not math.isfinite(read_steps(tmp_path / "run").by_number[60].grad_norm or 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_skip_drops_that_update_alone(tmp_path: Path, bad: float) -> None:
    loop = Loop(tmp_path / "run", bad, on_event="skip")
    loop.train(80, bad_at=60)
    loop.recorder.close()
    steps = read_steps(tmp_path / "run").by_number
    assert [number for number, step in steps.items() if step.skipped] == [60]
    assert steps[60].skipped == "the gradients are not finite"
    assert all(torch.isfinite(parameter).all() for parameter in loop.model.parameters())


def test_record_notices_it_before_the_weights_are_gone(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", math.nan)
    loop.train(64, bad_at=60)
    loop.recorder.close()
    (spike,) = read_spikes(tmp_path / "run").spikes
    assert (spike.event.metric, spike.event.first_step) == ("grad_norm", 60)


def test_a_failed_step_is_on_record_with_its_reason(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", 1.0)
    loop.train(5, bad_at=0)

    def failing(batch: Tensor) -> None:
        loop.recorder.loss(loop.model(batch).square().mean())
        raise MemoryError("out of memory")

    with pytest.raises(MemoryError):
        loop.recorder.step(failing, torch.randn(8, 4))
    loop.train(5, bad_at=0)
    loop.recorder.close()
    (event,) = read_events(tmp_path / "run", "step_failed")
    assert (event["step"], event["reason"]) == (6, "MemoryError: out of memory")
    assert list(read_steps(tmp_path / "run").by_number) == list(range(1, 11))


def spikes_of_a_scaler(run: Path, num_bad: int) -> list[tuple[str, int]]:
    """The events of a loop whose first gradients overflow."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    recorder = sonde.Recorder(run, model, optimizer, scaler=scaler)

    def train_step(item: tuple[int, Tensor]) -> None:
        number, batch = item
        loss = recorder.loss(model(batch).square().mean())
        bad = math.inf if number < num_bad else 1.0
        scaler.scale(spoil_gradients(loss, bad)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    for number in range(60):
        recorder.step(train_step, (number, torch.randn(8, 4)))
    recorder.close()
    steps = read_steps(run).by_number.values()
    assert sum(step.skipped is not None for step in steps) == num_bad
    return [(spike.event.metric, spike.event.first_step) for spike in read_spikes(run).spikes]


def test_a_scaler_that_only_skips_is_an_event_and_a_few_skips_are_not(tmp_path: Path) -> None:
    assert spikes_of_a_scaler(tmp_path / "few", 10) == []
    assert spikes_of_a_scaler(tmp_path / "many", 40) == [("scaler_skips", 25)]


SCRIPT = """
import sys
import torch
import sonde

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = sonde.Recorder(sys.argv[1], model, optimizer)

def train_step(batch):
    loss = model(batch).square().mean()
    recorder.loss(loss).backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(3):
    recorder.step(train_step, torch.randn(4, 2))
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("", "finished", None),
        ("raise ValueError('no luck')", "failed", "ValueError: no luck"),
        ("raise KeyboardInterrupt", "interrupted", "KeyboardInterrupt"),
        ("sys.exit(0)", "finished", None),
    ],
)
def test_how_a_script_without_with_ends_is_noted(
    tmp_path: Path, end: str, status: str, reason: str | None
) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end=end), str(tmp_path / "run")],
        check=False,
        capture_output=True,
    )
    assert summarise_run(tmp_path / "run").status == status
    assert json.loads((tmp_path / "run" / "run.json").read_bytes())["reason"] == reason
    assert list(read_steps(tmp_path / "run").by_number) == [1, 2, 3]


def test_sonde_off_records_nothing_and_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SONDE", "off")
    loop = Loop(tmp_path / "run", 1.0)
    loop.train(3, bad_at=0)
    with loop.recorder as recorder:
        assert recorder.restore() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"on_event": "ignore"}, "on_event is 'ignore'"),
        ({"scheduler": 5}, "scheduler=5 has no state_dict"),
    ],
)
def test_bad_arguments_fail_at_once(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SettingError, match=said):
        sonde.Recorder(tmp_path / "run", model, optimizer, **arguments)
    with pytest.raises(SettingError, match=r"optimizer must be a torch\.optim\.Optimizer, not int"):
        sonde.Recorder(tmp_path / "run", model, 3)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def restored(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **named: Any) -> int:
    with sonde.Recorder(run, model, optimizer, **named) as recorder:
        return recorder.restore()


def test_restore_is_all_or_nothing_and_says_why(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", 1.0)
    loop.train(3, bad_at=0)
    loop.recorder.close()
    other = nn.Linear(4, 3)
    before = other.weight.tolist()
    with pytest.raises(RunError, match=r"weight has shape \[2, 4\], the model's has \[3, 4\]"):
        restored(tmp_path / "run", other, torch.optim.AdamW(other.parameters()))
    assert other.weight.tolist() == before
    model = nn.Linear(4, 2)
    before = model.weight.tolist()
    groups: list[Any] = [{"params": [model.weight]}, {"params": [model.bias]}]
    in_groups = torch.optim.AdamW(groups)
    with pytest.raises(RunError, match="has 1 parameter groups, this one 2"):
        restored(tmp_path / "run", model, in_groups)
    assert model.weight.tolist() == before
    with pytest.raises(RunError, match="another kind of optimizer, without 'dampening'"):
        restored(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.weight.tolist() == before


def test_an_object_that_the_state_lacks_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(tmp_path / "run", 1.0)
    loop.train(3, bad_at=0)
    loop.recorder.close()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    assert restored(tmp_path / "run", model, optimizer, scheduler=scheduler) == 0
    assert "the kept state has no 'scheduler'" in caplog.text
