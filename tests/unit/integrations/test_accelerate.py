"""The tracker for Accelerate, and the recorder in its loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from example_road import command_of, start

from sonde.cli.main import run as sonde
from sonde.forensics.verdict import read_verdict
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.records.layout import LOG, RunLayout
from sonde.records.manifest import FINISHED, read_manifest
from sonde.records.reader import read_records
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
        recorder = Recorder(run, model, optimizer)

        def train_step(batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = recorder.loss(model(batch).mean())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for _ in range(3):
            recorder.step(train_step, torch.ones(4, 2))
        accelerator.log({"accuracy": 0.5}, step=3)
        accelerator.end_training()
    steps = read_steps(tmp_path / "run").by_number
    assert sorted(steps) == [1, 2, 3]
    assert steps[1].grad_norm is not None
    logged = [
        record["data"] for record in read_records(RunLayout(tmp_path / "run").record_file(LOG, 0))
    ]
    assert {"accuracy": 0.5} in logged


@pytest.mark.slow
def test_a_registered_tracker_opens_the_run_with_its_settings_and_closes_it(tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, register_tracker_class

    from sonde.integrations.accelerate import SondeTracker

    register_tracker_class(SondeTracker)
    try:
        accelerator = Accelerator(cpu=True, log_with="sonde")
        accelerator.init_trackers(str(tmp_path / "run"), config={"lr": 0.1})
        accelerator.log({"accuracy": 0.5}, step=3)
        accelerator.end_training()
    finally:
        del LOGGER_TYPE_TO_CLASS["sonde"]
    manifest = read_manifest(tmp_path / "run")
    assert manifest.settings == {"lr": 0.1}
    assert manifest.status == FINISHED
    logged = read_records(RunLayout(tmp_path / "run").record_file(LOG, 0))
    assert {"accuracy": 0.5} in [record["data"] for record in logged]


@pytest.mark.slow
def test_training_with_accelerate_is_the_same_with_and_without_the_recorder(tmp_path: Path) -> None:
    from accelerate import Accelerator

    def trained(directory: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
        run = None if directory is None else Run(directory)
        recorder = None if run is None else Recorder(run, model, optimizer)

        def train_step(batch: torch.Tensor) -> None:
            loss: torch.Tensor = model(batch).square().mean()
            accelerator.backward(loss if recorder is None else recorder.loss(loss))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        for step in range(20):
            batch = torch.full((4, 4), 1.0 + step)
            train_step(batch) if recorder is None else recorder.step(train_step, batch)
        if run is not None:
            run.close()
        return [parameter.detach() for parameter in model.parameters()]

    watched = trained(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(watched, trained(None), strict=True))
    assert len(read_steps(tmp_path / "run").by_number) == 20


@pytest.mark.slow
def test_a_look_at_an_event_does_not_shift_what_accumulate_counts(tmp_path: Path) -> None:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    def trained(directory: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(1)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
        values = 1 + 0.1 * torch.randn(28 * 30, 4)
        values[28 * 28 + 5] *= 40
        batches: Any = range(7)
        model = torch.nn.Linear(4, 1)
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=1e-3), DataLoader(batches)
        )
        recorder = None if directory is None else Recorder(directory, model, optimizer)

        def train_step(batch: torch.Tensor) -> None:
            with accelerator.accumulate(model):
                loss: torch.Tensor = model(batch).square().mean()
                accelerator.backward(loss if recorder is None else recorder.loss(loss))
                optimizer.step()
                optimizer.zero_grad()

        for epoch in range(30):
            for number in loader:
                first = 28 * epoch + 4 * int(number)
                batch = values[first : first + 4]
                train_step(batch) if recorder is None else recorder.step(train_step, batch)
        if recorder is not None:
            recorder.run.close()
        return [parameter.detach() for parameter in model.parameters()]

    watched = trained(tmp_path / "run")
    assert RunLayout(tmp_path / "run").verdicts()  # the step was looked at
    # 7 batches are 2 updates, of 4 and 3
    assert len(read_steps(tmp_path / "run").by_number) == 2 * 30
    assert all(torch.equal(a, b) for a, b in zip(watched, trained(None), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.long_fault), 2])
def test_the_example_goes_the_whole_road_with_accumulation(tmp_path: Path, num_ranks: int) -> None:
    run = tmp_path / "run"
    command = command_of(
        "accelerate_loop.py", "--directory", run, "--rows", 4 // num_ranks, num_ranks=num_ranks
    )
    assert "The batch holds garbled text (" in start(command)
    verdicts = [read_verdict(run, step) for step, _ in RunLayout(run).verdicts()]
    found = [verdict for verdict in verdicts if verdict.causes[0].cause == "garbled_text"]
    assert (
        len({suspect.sample for verdict in found for suspect in verdict.causes[0].suspects}) == 1
    )  # by content, in every epoch
    step = found[-1].step
    assert sonde(["diagnose", str(run), "--step", str(step), "--", *command]) == 0
    verdict = read_verdict(run, step)
    assert verdict.causes[0].cause == "garbled_text"
    assert "the same to the bit" in verdict.experiments[0].found
    assert sonde(["rollback", str(run), "--step", str(step), "--apply"]) == 0
    assert "garbled" not in start([*command, "--resume"])
