"""Samples on their way through the recorder: written when they stand out, read back, skipped by
name, and never in the way.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.cli.main import run as run_cli
from sonde.data.skip_list import read_skip_list
from sonde.errors import SettingError
from sonde.records.reader import read_records
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings
from sonde.spikes.spike_log import read_spikes, skip_step

BAD_STEP = 150
BAD_ROW = 7


def feed(
    recorder: SpikeRecorder,
    *,
    num_steps: int = 200,
    rows: int = 32,
    bad: tuple[int, ...] = (BAD_STEP,),
) -> None:
    """Steps whose samples have losses around 3; one row of the bad ones has 8."""
    generator = np.random.default_rng(1)
    for step in range(1, num_steps + 1):
        losses = torch.tensor(generator.normal(3, 0.3, rows), dtype=torch.float32)
        if step in bad:
            losses[BAD_ROW] = 8.0
        recorder.observe(
            step,
            float(losses.mean()),
            sample_ids=[("train", 100 * step + row) for row in range(rows)],
            sample_losses=losses,
            token_losses=losses[:, None].repeat(1, 3),
            token_counts=torch.full((rows,), 2),
        )


def test_one_bad_row_is_recorded_though_the_mean_is_no_event(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        recorder = run.spikes()
        feed(recorder)
        assert recorder.num_events == 0
    log = read_spikes(tmp_path / "run")
    (sample,) = log.samples
    assert log.spikes == ()
    assert (sample.step, sample.dataset, sample.sample) == (
        BAD_STEP,
        "train",
        100 * BAD_STEP + BAD_ROW,
    )
    assert (sample.loss, sample.num_tokens, sample.token_losses) == (8.0, 2, (8.0, 8.0))
    assert sample.expected == pytest.approx(3, abs=0.3)
    assert (sample.z or 0) > 10


def test_what_stands_out_is_shown_for_the_step_it_stands_out_in(tmp_path: Path) -> None:
    shown = []
    with SpikeRecorder(tmp_path / "s") as recorder:
        for step in range(1, 161):
            losses = np.random.default_rng(step).normal(3, 0.3, 32)
            if step == 150:
                losses[4] += 5.0
            assert recorder.observe(step, float(losses.mean()), sample_losses=losses) is None
            shown += [recorder.sample_event.rows] if recorder.sample_event else []
    assert shown == [(4,)]


def test_records_of_samples_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.spikes.recorder._MAX_SAMPLE_RECORDS", 3)
    with SpikeRecorder(tmp_path / "s") as recorder:
        feed(recorder, bad=tuple(range(100, 200, 10)))
    assert (
        len([record for record in read_records(tmp_path / "s") if record["type"] == "SAMPLE"]) == 3
    )


@pytest.mark.parametrize(
    "losses", [torch.full((32,), 3.0, dtype=torch.bfloat16), [3.0] * 32, np.full(32, 3.0)]
)
def test_losses_are_taken_as_they_come(tmp_path: Path, losses: Any) -> None:
    with SpikeRecorder(tmp_path / "s") as recorder:
        recorder.observe(1, 3.0, sample_losses=losses, token_counts=[5] * 32)
        assert recorder.state_dict()["samples"]["watch"]["model"]["counts"][0] == 32


def test_a_row_that_only_keeps_a_rank_in_step_is_not_judged(tmp_path: Path) -> None:
    with SpikeRecorder(tmp_path / "s") as recorder:
        recorder.observe(1, 3.0, sample_ids=[("train", -1)], sample_losses=torch.zeros(1))
        assert recorder.state_dict()["samples"]["watch"]["model"]["counts"][0] == 0


def test_samples_can_be_left_alone(tmp_path: Path) -> None:
    with SpikeRecorder(tmp_path / "s", settings=SpikeSettings(sample_risk=None)) as recorder:
        feed(recorder)
        assert recorder.sample_event is None
        recorder.load_state_dict(recorder.state_dict())
    assert list(read_records(tmp_path / "s")) == []


def test_the_list_has_samples_that_stood_out_and_a_step_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run") as run:
        feed(run.spikes())
    assert run_cli(["spikes", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert f"step {BAD_STEP}  sample  1 sample stood out" in printed
    assert str(100 * BAD_STEP + BAD_ROW) in printed
    assert run_cli(["spikes", str(tmp_path / "run"), "--step", str(BAD_STEP)]) == 0
    assert "1. loss 8 at step 150 where samples of its length have" in capsys.readouterr().out


def test_a_sample_that_stands_out_is_skipped_by_name(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        feed(run.spikes())
    skipped = skip_step(tmp_path / "run", BAD_STEP)
    assert read_skip_list(skipped.path).samples("train").tolist() == [100 * BAD_STEP + BAD_ROW]


def test_inside_a_long_event_every_step_has_its_own_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run") as run:
        recorder = run.spikes(settings=SpikeSettings(rule=ThresholdRule(above=5.0), ring_steps=4))
        for step in range(1, 301):
            ids = [("train", 10 * step + row) for row in range(2)]
            recorder.observe(
                step,
                6.0 + (step == 250) if step > 100 else 2.0,
                sample_ids=ids,
                sample_losses=[1.0, 9.0],
            )
    (spike,) = read_spikes(tmp_path / "run").spikes
    for step in (101, 150, 228, 250):  # the first, some, and the peak
        assert spike.samples(step)[0].sample == 10 * step + 1
    assert run_cli(["spikes", str(tmp_path / "run"), "--step", "150"]) == 0
    assert "train 1501" in capsys.readouterr().out
    with pytest.raises(SettingError, match="step 290 was not kept"):
        skip_step(tmp_path / "run", 290)
