"""What a recorder tells of its own process and of rows with numbers."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recorder_loops import Training
from torch import Tensor, nn

from sonde.recorder import memory
from sonde.recorder.memory import own_memory
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.recorder.update import Update, UpdateClock
from sonde.records.journal import read_events
from sonde.report.run_curves import RunCurves
from sonde.run import Run
from sonde.spikes.quiet_rules import QUIET_FAILURE


@pytest.mark.parametrize(("num_workers", "kinds"), [(4, ["rows_again"]), (1, [])])
def test_rows_that_every_worker_reads_are_told_once(
    tmp_path: Path, num_workers: int, kinds: list[str]
) -> None:
    torch.manual_seed(2)
    data = torch.randn(1600, 6)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = RecorderOptions(state_every=0)
    with Run(tmp_path / "run") as run, Recorder(run, model, optimizer, options=options) as recorder:

        def train_step(batch: dict[str, Tensor]) -> Tensor:
            inputs = batch["inputs"]
            loss = recorder.loss(F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for start in range(0, 1600, 16):
            rows = torch.arange(start, start + 16)
            for _ in range(num_workers):
                recorder.step(train_step, {"inputs": data[rows], "sample_ids": rows})
    found = read_events(tmp_path / "run", QUIET_FAILURE)
    assert [record["kind"] for record in found] == kinds


def test_rows_of_two_datasets_may_have_the_same_numbers(tmp_path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = RecorderOptions(state_every=0)
    with Run(tmp_path / "run") as run, Recorder(run, model, optimizer, options=options) as recorder:

        def train_step(batch: dict[str, Any]) -> Tensor:
            loss: Tensor = recorder.loss(model(batch["inputs"]).square().mean())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for start in range(0, 1600, 16):
            for dataset in ("left", "right"):
                names = [(dataset, row) for row in range(start, start + 16)]
                recorder.step(train_step, {"inputs": torch.randn(16, 6), "sample_ids": names})
    kinds = [record["kind"] for record in read_events(tmp_path / "run", QUIET_FAILURE)]
    assert "rows_again" not in kinds


def test_updates_that_are_far_larger_than_usual_are_told(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    options = RecorderOptions(state_every=0, vitals=True)
    with Run(tmp_path / "run") as run, Recorder(run, model, optimizer, options=options) as recorder:

        def train_step(inputs: Tensor) -> Tensor:
            loss = recorder.loss(F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)))
            loss.backward()
            if recorder.num_updates > 900:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad *= 100
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for _ in range(1100):
            recorder.step(train_step, torch.randn(16, 6))
    found = read_events(tmp_path / "run", QUIET_FAILURE)
    assert [record["step"] for record in found if record["kind"] == "update_size"] == [1000]


def test_a_look_of_ours_counts_neither_as_work_nor_as_waiting() -> None:
    clock = UpdateClock()
    clock.began = time.perf_counter()
    clock.end(Update(1, had_gradients=False), 0.0)
    time.sleep(0.05)  # a look after the step
    clock.began = time.perf_counter()
    after_the_step = Update(2, had_gradients=False)
    clock.end(after_the_step, 0.05)
    clock.began = time.perf_counter()
    time.sleep(0.05)  # a look before the optimizer moves
    in_the_step = Update(3, had_gradients=False)
    clock.end(in_the_step, 0.10)  # both looks so far
    assert after_the_step.wait_seconds < 0.04
    assert in_the_step.seconds < 0.04


def test_the_memory_of_the_process_is_a_curve_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "EVERY_SECONDS", 0.0)
    training = Training(tmp_path / "run")
    training.train(3)
    assert training.recorder is not None
    training.recorder.run.close()
    curves = RunCurves(tmp_path / "run")
    curves.refresh()
    curve = curves.read(memory.PROCESS_MEMORY)
    assert curve.steps.tolist() == [1, 2, 3]
    assert 0.01 < curve.values[0] < 100


def test_the_memory_of_this_process_is_its_own() -> None:
    before = own_memory()
    if before is None:
        pytest.skip("this system has no /proc")
    kept = torch.ones(64 << 20, dtype=torch.uint8)
    after = own_memory()
    assert after is not None
    assert after - before > 0.9 * kept.nbytes
