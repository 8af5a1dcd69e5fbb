"""The tracker for Accelerate, and the flight recorder in its loop."""

import sys
from pathlib import Path

import pytest
import torch
from example_road import EXAMPLES, start

from sonde.flight.recorder import FlightRecorder
from sonde.forensics.verdict import read_verdict
from sonde.records.layout import LOG, RunLayout
from sonde.records.reader import read_records
from sonde.records.steps import read_steps
from sonde.run import Run


@pytest.mark.slow  # the import alone
def test_what_accelerate_logs_and_the_updates_of_its_loop_are_in_the_run(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from sonde.integrations.accelerate import SondeTracker

    with Run(tmp_path / "run") as run:
        accelerator = Accelerator(cpu=True, log_with=SondeTracker(run))
        accelerator.init_trackers("mine", config={"lr": 0.1})
        model = torch.nn.Linear(2, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        flight = FlightRecorder(run, model, optimizer)

        def train_step(batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = flight.loss(model(batch).mean())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for _ in range(3):
            flight.step(train_step, torch.ones(4, 2))
        accelerator.log({"accuracy": 0.5}, step=3)
        accelerator.end_training()
    steps = read_steps(tmp_path / "run").by_number
    assert sorted(steps) == [1, 2, 3]
    assert steps[1].grad_norm is not None
    logged = [one["data"] for one in read_records(RunLayout(tmp_path / "run").record_file(LOG, 0))]
    assert {"accuracy": 0.5} in logged


@pytest.mark.slow
def test_training_with_accelerate_is_the_same_with_and_without_the_recorder(tmp_path: Path) -> None:
    from accelerate import Accelerator

    def trained(directory: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        run = None if directory is None else Run(directory)
        flight = None if run is None else FlightRecorder(run, model, optimizer)

        def train_step(batch: torch.Tensor) -> None:
            loss: torch.Tensor = model(batch).square().mean()
            accelerator.backward(loss if flight is None else flight.loss(loss))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        for step in range(20):
            batch = torch.full((4, 4), 1.0 + step)
            train_step(batch) if flight is None else flight.step(train_step, batch)
        if run is not None:
            run.close()
        return [one.detach() for one in model.parameters()]

    watched = trained(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(watched, trained(None), strict=True))
    assert len(read_steps(tmp_path / "run").by_number) == 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_finds_the_garbled_record_with_accumulation(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "accelerate_loop.py"), "--directory", str(tmp_path / "run")]
    assert "The batch holds garbled text.: " in start(command)
    verdicts = [read_verdict(tmp_path / "run", step) for step, _ in RunLayout(tmp_path / "run").verdicts()]
    assert "garbled_text" in {verdict.causes[0].cause for verdict in verdicts}
    assert (
        len({one.sample for verdict in verdicts for one in verdict.causes[0].suspects}) == 1
    )  # by content, in every epoch
