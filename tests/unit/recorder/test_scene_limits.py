"""A look at a scene takes no more memory than a step took, and no more than its seconds."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_group import run_ranks
from torch import Tensor, nn

from sonde.forensics.verdict import read_verdict
from sonde.recorder import put_back, scene, scene_limits
from sonde.recorder.dropped_activations import ActivationsDroppedError, DroppedActivations
from sonde.recorder.options import RecorderOptions
from sonde.recorder.put_back import Remembered, standing_still
from sonde.recorder.recorder import Recorder
from sonde.recorder.scene_limits import SceneLimits, forward_seconds, is_out_of_memory
from sonde.recorder.training import Training
from sonde.recorder.update import Update
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeSettings

CPU = torch.device("cpu")
OPTIONS: dict[str, Any] = {
    "state_every": 0,
    "spikes": SpikeSettings(rule=ThresholdRule(above=50.0), grad_norm_rule=None),
}
EVENTS = (6, 12)
NUM_STEPS = 14


class Loop:
    """A regression whose loss jumps at two steps."""

    def __init__(
        self,
        run: Path | None,
        loss_of: Callable[[nn.Module, Tensor], Tensor] | None = None,
        **options: Any,
    ) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)
        )
        if dist.is_initialized():
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loss_of = loss_of or (lambda model, rows: model(rows).square().mean())
        self.recorder: Recorder | None = None
        if run is not None:
            own = RecorderOptions(**OPTIONS, **options)
            self.recorder = Recorder(run, self.model, self.optimizer, options=own)

    def train_step(self, rows: Tensor) -> Tensor:
        """Make one update."""
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model, rows)
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self) -> list[float]:
        """Train, and return all losses."""
        losses = []
        for step in range(1, NUM_STEPS + 1):
            rows = torch.randn(4, 6)
            if step in EVENTS:
                rows[:, 0] = 1e3
                rows *= 1e3
            loss = self.recorder.step(self.train_step, rows) if self.recorder else None
            losses.append((self.train_step(rows) if loss is None else loss).item())
        if self.recorder:
            self.recorder.close()
        return losses


def penalised(model: nn.Module, rows: Tensor) -> Tensor:
    """Return a loss with a gradient penalty."""
    inputs = rows.clone().requires_grad_()
    found = model(inputs).square().mean()
    (slope,) = torch.autograd.grad(found, inputs, create_graph=True)
    penalised: Tensor = found + 0.1 * slope.square().mean()
    return penalised


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which forward passes are repeated."""
    found: list[float] = []
    original = Training.loss_again

    def noted(*given: Any) -> float | None:
        found.append(time.monotonic())
        return original(*given)

    monkeypatch.setattr(Training, "loss_again", noted)
    return found


def test_a_forward_pass_without_its_activations_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    rows = torch.randn(3, 7, 16)
    generator = torch.get_rng_state()
    whole = model(rows).square().mean()
    torch.set_rng_state(generator)
    with DroppedActivations(model.parameters()) as dropped:
        light = model(rows).square().mean()
    assert torch.equal(whole, light)
    assert dropped.num_bytes > rows.nbytes
    with pytest.raises(ActivationsDroppedError):
        light.backward()
    assert dropped.was_asked
    whole.backward()


@pytest.mark.parametrize("loss_of", [None, penalised])
def test_the_scene_repeats_the_loss_bit_for_bit_also_where_that_takes_gradients(
    tmp_path: Path, loss_of: Any
) -> None:
    watched = Loop(tmp_path / "run", loss_of)
    assert watched.train() == Loop(None, loss_of).train()
    verdict = read_verdict(tmp_path / "run", EVENTS[0])
    assert "the same to the bit" in verdict.experiments[0].found
    recorder = watched.recorder
    assert recorder is not None
    assert recorder.training.is_repeatable


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_without_memory_the_look_ends_and_is_told_once_and_training_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    calls = []

    def fails(*_: object) -> None:
        calls.append(1)
        raise kind("no memory")

    monkeypatch.setattr(Training, "loss_again", fails)
    with caplog.at_level(logging.WARNING):
        losses = Loop(tmp_path / "run").train()
    assert losses == Loop(None).train()
    assert len(calls) == 1
    (told,) = [text for text in caplog.messages if "no memory left" in text]
    assert told.startswith("step 6: the look at the scene ends")
    assert read_verdict(tmp_path / "run", EVENTS[0]).causes


def test_a_look_that_takes_more_memory_than_the_training_is_the_last(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    passes: list[float],
) -> None:
    sizes = iter([1 << 30, *[2 << 30] * 99])
    monkeypatch.setattr(scene_limits, "peak_memory", lambda _: next(sizes))
    with caplog.at_level(logging.WARNING):
        Loop(tmp_path / "run").train()
    assert len(passes) == 1
    assert any("it took more memory than a step" in text for text in caplog.messages)


def test_no_pass_is_begun_that_takes_longer_than_the_look_may(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    passes: list[float],
) -> None:
    monkeypatch.setattr(scene, "forward_seconds", lambda _: 11.0)
    with caplog.at_level(logging.INFO):
        Loop(tmp_path / "run").train()
    assert not passes
    assert any("it takes longer than scene_seconds" in text for text in caplog.messages)


def test_no_further_pass_is_begun_that_does_not_fit_into_the_seconds(
    tmp_path: Path, passes: list[float]
) -> None:
    loop = Loop(tmp_path / "run", scene_seconds=1.0)
    recorder = loop.recorder
    assert recorder is not None
    loop.model.register_forward_pre_hook(
        lambda *_: time.sleep(0.4) if recorder.is_repeating else None
    )
    loop.train()
    of_first_look = [at for at in passes if at - passes[0] < 1.5]
    assert 1 <= len(of_first_look) <= 2


def test_the_forward_passes_of_a_step_take_a_third_of_its_time() -> None:
    updates = []
    for seconds in (3.0, 3.0, 90.0):
        update = Update(1, had_gradients=False)
        update.seconds = seconds + 1.0
        update.wait_seconds = 1.0
        updates.append(update)
    assert forward_seconds(updates) == pytest.approx(1.0)
    assert forward_seconds([Update(1, had_gradients=False)]) == 0.0


def test_there_is_room_up_to_the_peak_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 1 << 30
    monkeypatch.setattr(scene_limits, "peak_memory", lambda _: 10 * gigabyte)
    monkeypatch.setattr(scene_limits, "_held_memory", lambda _: 9 * gigabyte)
    limits = SceneLimits(10.0, CPU)
    assert limits.has_room(gigabyte)
    assert not limits.has_room(2 * gigabyte)
    assert not limits.is_memory_exceeded()


def test_what_torch_says_without_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def test_large_tensors_are_copied_only_when_they_are_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied = []
    original = Remembered._remember_tensor

    def noted(self: Remembered, tensor: Tensor) -> None:
        copied.append(tensor.nbytes)
        original(self, tensor)

    monkeypatch.setattr(put_back, "_LARGE", 1024)
    monkeypatch.setattr(Remembered, "_remember_tensor", noted)
    model = nn.Linear(4, 1)
    average = torch.ones(256)
    queue = torch.ones(512)

    def step(rows: Tensor) -> Tensor:
        queue[:2] = 5.0
        loss: Tensor = model(rows).mean() + average.sum()
        return loss

    optimizer = torch.optim.Adam(model.parameters())
    with standing_still(model, optimizer, step):
        step(torch.ones(1, 4))
        assert queue[0] == 5.0
    assert queue[0] == 1.0
    assert [size for size in copied if size >= 1024] == [queue.nbytes]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["memory", "seconds", "nothing"])
def test_ranks_end_a_look_together_if_one_of_them_has_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    calls = []
    original = Training.loss_again

    def noted(*given: Any) -> float | None:
        calls.append(1)
        if what == "memory" and dist.get_rank() == 1:
            raise MemoryError
        return original(*given)

    def seconds(_: object) -> float:
        return 11.0 if what == "seconds" and dist.get_rank() == 1 else 0.0

    monkeypatch.setattr(Training, "loss_again", noted)
    monkeypatch.setattr(scene, "forward_seconds", seconds)

    def work(rank: int) -> list[Any]:
        del rank
        loop = Loop(tmp_path / "run")
        loop.train()
        assert loop.recorder is not None
        return [len(calls), loop.recorder.training.is_repeatable]

    first, second = run_ranks(2, work)
    if what == "memory":
        assert (first[0], second[0]) == (1, 1)
        assert not second[1]
    elif what == "seconds":
        assert (first[0], second[0]) == (0, 0)
    else:
        assert first[0] == second[0] > 2
    assert read_verdict(tmp_path / "run", EVENTS[0]).causes
