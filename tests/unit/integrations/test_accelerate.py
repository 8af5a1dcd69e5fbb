"""The tracker for Accelerate, and the flight recorder in its loop."""

from pathlib import Path

import pytest
import torch

from sonde.flight.recorder import FlightRecorder
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
