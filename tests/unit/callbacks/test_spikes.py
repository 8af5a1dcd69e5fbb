"""The spike recorder rides along with a trainer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import Regression, make_trainer, weights
from torch import Tensor

from sonde.callbacks.context import Context, ContextValues
from sonde.callbacks.spikes import SpikeCallback
from sonde.records.journal import read_steps
from sonde.run import Run
from sonde.spikes.ledger_log import read_ledger
from sonde.spikes.recorder import SpikeSettings
from sonde.spikes.spike_log import read_spikes
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput

BAD_STEP = 120


class Named(Regression):
    """Regression that says which samples it had; those of one step are far off."""

    def __init__(self) -> None:
        super().__init__()
        self.num_computed = 0

    def compute(self, batch: Tensor) -> StepOutput:
        if self.model.training:
            self.num_computed += 1
        spoilt = batch * 40 if self.num_computed == BAD_STEP else batch
        losses = (self.model(spoilt).squeeze(1) - spoilt.sum(1)).square()
        ids = [("numbers", 10 * self.num_computed + row) for row in range(len(batch))]
        return StepOutput(
            loss_sum=losses.sum(),
            weight=len(batch),
            sample_losses=losses.detach(),
            token_losses=losses.detach()[:, None],
            token_counts=torch.ones(len(batch), dtype=torch.long),
            sample_ids=ids,
        )


def train(directory: Path, **settings: Any) -> Named:
    task = Named()
    with Run(directory) as run:
        trainer, _ = make_trainer(run, task=task, **settings)
        trainer.train(stop=StopWhen(max_updates=140))
    return task


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Named]:
    directory = tmp_path_factory.mktemp("runs") / "watched"
    return directory, train(directory)


def test_a_trainer_with_a_run_records_the_spike_and_its_samples(
    trained: tuple[Path, Named],
) -> None:
    directory, _ = trained
    (spike,) = [
        spike for spike in read_spikes(directory).spikes if spike.event.first_step == BAD_STEP
    ]
    worst = spike.samples()[0]
    assert worst.dataset == "numbers"
    assert int(worst.sample) // 10 == BAD_STEP
    assert worst.token_losses is not None
    assert spike.steps[BAD_STEP][0]["rng"] == f"1:{BAD_STEP - 1}"


def test_every_update_is_recorded_exactly(trained: tuple[Path, Named]) -> None:
    directory, _ = trained
    steps = read_steps(directory).by_number
    spike = read_spikes(directory).at(BAD_STEP)
    assert list(steps) == list(range(1, 141))
    assert steps[BAD_STEP].loss == spike.event.value
    assert steps[BAD_STEP].lr == 1e-2
    assert steps[7].weight == 2.0


def test_watching_changes_nothing(trained: tuple[Path, Named], tmp_path: Path) -> None:
    unwatched = train(tmp_path / "run", watch_spikes=False)
    assert weights(unwatched) == weights(trained[1])
    assert not (tmp_path / "run" / "records" / "spikes.rank0.jsonl").exists()


def test_several_micro_batches_are_one_step(tmp_path: Path) -> None:
    task = Named()
    with Run(tmp_path / "run") as run:
        trainer, _ = make_trainer(run, task=task, update_freq=2)
        recorder = run.spikes(settings=SpikeSettings(ring_steps=3))
        trainer.train(stop=StopWhen(max_updates=80), callbacks=[SpikeCallback(recorder)])
    spike = read_spikes(tmp_path / "run").at(BAD_STEP // 2)
    first = (BAD_STEP - 1) * 10
    last = BAD_STEP * 10 + 9
    assert len(spike.steps) == 3
    assert all(first <= int(sample.sample) <= last for sample in spike.samples())
    assert {int(sample.sample) // 10 for sample in spike.samples()} == {BAD_STEP - 1, BAD_STEP}


def test_a_rank_that_ran_out_of_memory_has_no_samples_and_goes_on_watching(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        watch = SpikeCallback(run.spikes())
        for step, loss in enumerate([1.0, 1.1] * 30 + [50.0], start=1):
            watch.on_step_end(Context(ContextValues(step=step, weight=7.0, tensors={"loss": loss})))
    assert [spike.event.first_step for spike in read_spikes(tmp_path / "run").spikes] == [61]


def test_detectors_and_ledger_go_on_after_a_resume_as_if_nothing_had_been(tmp_path: Path) -> None:
    with Run(tmp_path / "whole") as run:
        make_trainer(run, task=Named())[0].train(stop=StopWhen(max_updates=140))
    task = Named()
    for num_updates in (100, 140):
        with Run(tmp_path / "parts") as run:
            make_trainer(run, task=task)[0].train(stop=StopWhen(max_updates=num_updates))
    found = [
        [
            (spike.event.first_step, spike.event.value, spike.event.baseline, spike.event.z)
            for spike in read_spikes(run).spikes
        ]
        for run in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert found[0] == found[1]
    assert any(step == BAD_STEP for step, *_ in found[0])
    whole, parts = (read_ledger(tmp_path / name).rows for name in ("whole", "parts"))
    assert len(whole[0]) > 140
    assert [column.tolist() for column in whole] == [column.tolist() for column in parts]


def test_the_event_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path / "run")
    sentences = [
        record.getMessage()
        for record in caplog.records
        if f"step {BAD_STEP}:" in record.getMessage()
    ]
    assert len(sentences) == 1
    assert f"--step {BAD_STEP}" in sentences[0]
    lines = (tmp_path / "run" / "records" / "spikes.rank0.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines].count("SPIKE") == len(
        read_spikes(tmp_path / "run").spikes
    )
