"""The recorder: what it keeps, when it writes, what it survives, and that it never reads a
device.
"""

import json
import logging
import math
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.errors import SettingError
from sonde.records.reader import read_records
from sonde.spikes import held_values
from sonde.spikes import recorder as recorder_module
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import ELSEWHERE, SpikeRecorder, SpikeSettings

SETTINGS = SpikeSettings(rule=ThresholdRule(above=5.0), ring_steps=4, worst_samples=2)


def records(path: Path) -> list[dict[str, Any]]:
    return list(read_records(path))


def details(step: int) -> dict[str, Any]:
    return {
        "sample_ids": [("train", 10 * step + row) for row in range(3)],
        "sample_losses": torch.tensor([1.0, 7.5, 2.0]) + step,
        "token_losses": torch.arange(12.0).reshape(3, 4),
        "token_counts": [4, 2, 3],
        "lr": 0.1,
        "grad_norm": 1.5,
    }


def test_a_spike_is_written_with_the_steps_before_it_and_its_worst_tokens(tmp_path: Path) -> None:
    path = tmp_path / "spikes.rank1.jsonl"
    with SpikeRecorder(path, settings=SETTINGS, rank=1) as recorder:
        for step in range(10):
            event = recorder.observe(step, 9.0 if step == 8 else 2.0, **details(step))
            assert (event is not None) == (step == 8)
    spike, end = records(path)
    assert (spike["type"], spike["step"], spike["rank"], spike["version"]) == ("SPIKE", 8, 1, 1)
    assert spike["event"]["kind"] == "spike"
    assert [entry["step"] for entry in spike["steps"]] == [5, 6, 7, 8]
    assert spike["steps"][-1] == {
        "step": 8,
        "loss": 9.0,
        "lr": 0.1,
        "grad_norm": 1.5,
        "rng": spike["steps"][0]["rng"],
        "sample_ids": [["train", 80], ["train", 81], ["train", 82]],
        "sample_losses": [9.0, 15.5, 10.0],
        "token_counts": [4, 2, 3],
    }
    assert spike["tokens"] == [
        {"row": 1, "losses": [4.0, 5.0]},
        {"row": 2, "losses": [8.0, 9.0, 10.0]},
    ]
    assert (end["type"], end["step"], end["over"]) == ("SPIKE_END", 8, False)


def test_the_end_tells_the_span_the_peak_and_the_steps_that_followed(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with SpikeRecorder(path, settings=SETTINGS) as recorder:
        for step in range(60):
            recorder.observe(step, {20: 6.0, 21: 8.0, 23: 7.0}.get(step, 2.0), **details(step))
        recorder.flush()
        _, end = records(path)
    assert end["over"] is True
    assert (end["event"]["first_step"], end["event"]["last_step"], end["event"]["num_bad"]) == (
        20,
        23,
        3,
    )
    assert (end["event"]["peak"], end["event"]["peak_step"]) == (8.0, 21)
    assert [entry["step"] for entry in end["steps"]] == [21, 22, 23]
    assert len(records(path)) == 2


def test_tensors_that_are_written_over_afterwards_are_recorded_as_they_were(tmp_path: Path) -> None:
    losses = torch.ones(3)
    ids = [1, 2, 3]
    counts = np.array([4, 4, 4])
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        for step in range(3):
            losses.fill_(step)
            counts.fill(step)
            ids[0] = step
            recorder.observe(
                step,
                9.0 if step == 2 else 1.0,
                sample_ids=ids,
                sample_losses=losses,
                token_counts=counts,
            )
        losses.fill_(99)
        ids[0] = 99
    entries = records(tmp_path / "s")[0]["steps"]
    assert [entry["sample_losses"] for entry in entries] == [[0.0] * 3, [1.0] * 3, [2.0] * 3]
    assert [entry["sample_ids"][0] for entry in entries] == [0, 1, 2]
    assert [entry["token_counts"][0] for entry in entries] == [0, 1, 2]


def test_large_losses_of_tokens_are_not_copied_until_a_spike_and_safe_after_it(
    tmp_path: Path,
) -> None:
    tokens = torch.ones(64, 256)
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        recorder.observe(0, 1.0, sample_ids=range(64), token_losses=tokens)
        assert recorder._ring[-1].token_losses is None
        recorder.observe(
            1, 9.0, sample_ids=list(range(64)), sample_losses=[1.0] * 64, token_losses=tokens
        )
        tokens.fill_(99.0)
    spike = records(tmp_path / "s")[0]
    assert spike["tokens"][0] == {"row": 0, "losses": [1.0] * 256}


def test_losses_of_samples_are_means_over_tokens_when_they_are_not_given(tmp_path: Path) -> None:
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        recorder.observe(
            0,
            9.0,
            sample_ids=["a", "b"],
            token_losses=[[1.0, 3.0, 50.0], [4.0]],
            token_counts=[2, 1],
        )
    spike = records(tmp_path / "s")[0]
    assert spike["steps"][0]["sample_losses"] == [2.0, 4.0]
    assert [row["row"] for row in spike["tokens"]] == [1, 0]


@pytest.mark.parametrize(
    "loss", [torch.tensor(9.0, requires_grad=True), np.float32(9.0), 9, torch.tensor([9.0])]
)
def test_a_loss_may_be_a_number_or_a_tensor(tmp_path: Path, loss: object) -> None:
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        assert recorder.observe(0, loss) is not None
    assert records(tmp_path / "s")[0]["steps"][0]["loss"] == 9.0


@pytest.mark.parametrize(
    "broken",
    [
        {"loss": "no number"},
        {"sample_losses": object(), "sample_ids": [1]},
        {"token_losses": 5, "sample_losses": [1.0]},
        {"grad_norm": "x"},
        {"token_counts": ["x"], "token_losses": [[1.0]], "sample_losses": [1.0]},
    ],
)
def test_nothing_that_is_handed_over_raises_into_the_step(
    tmp_path: Path, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder,
    ):
        for step in range(3):
            recorder.observe(step, **{"loss": 9.0, **broken})
    assert len(caplog.records) <= 3
    assert recorder.observe(9, 1.0) is None


def test_the_greatest_numbers_are_recorded_and_forgotten(tmp_path: Path) -> None:
    with SpikeRecorder(tmp_path / "s") as recorder:
        for step in range(300):
            loss = 1.7e308 if step in (150, 151) else 2 + 0.01 * (step % 7)
            recorder.observe(
                step, loss, sample_ids=["a"], token_losses=[[loss] * 3], grad_norm=loss
            )
    spike = records(tmp_path / "s")[0]
    assert (spike["event"]["first_step"], spike["event"]["peak"], recorder.num_events) == (
        150,
        1.7e308,
        1,
    )
    assert spike["steps"][-1]["sample_losses"] == pytest.approx([1.7e308])


def test_nan_is_an_event_and_is_written_as_such(tmp_path: Path) -> None:
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        event = recorder.observe(
            3, math.nan, sample_ids=[7], sample_losses=torch.tensor([math.nan])
        )
    assert event is not None
    assert event.kind == "nonfinite"
    assert math.isnan(records(tmp_path / "s")[0]["steps"][0]["sample_losses"][0])


def test_a_leap_of_the_gradient_norm_is_an_event_of_its_own(tmp_path: Path) -> None:
    draw = random.Random(1)
    with SpikeRecorder(tmp_path / "s") as recorder:
        for step in range(200):
            recorder.observe(
                step, 2.0 + draw.gauss(0, 0.02), grad_norm=math.exp(draw.gauss(0, 0.2))
            )
        event = recorder.observe(200, 2.0, grad_norm=torch.tensor(500.0))
        recorder.observe(201, 9.0, grad_norm=1.0)
    assert event is not None
    assert (event.metric, event.kind) == ("grad_norm", "spike")
    assert event.value == pytest.approx(500.0)
    assert 0.5 < event.baseline < 2
    # The loss follows one step later: that is the same event, not another.
    assert [record["type"] for record in records(tmp_path / "s")] == ["SPIKE", "SPIKE_END"]


def test_it_resumes_from_a_checkpoint_as_if_nothing_had_been(tmp_path: Path) -> None:
    draw = random.Random(2)
    losses = [3.0 + draw.gauss(0, 0.05) for _ in range(400)]
    losses[300:303] = [4.0, 4.0, 4.0]
    with SpikeRecorder(tmp_path / "whole") as whole:
        expected = [whole.observe(step, loss, grad_norm=loss) for step, loss in enumerate(losses)]
    with SpikeRecorder(tmp_path / "part") as first:
        found = [
            first.observe(step, loss, grad_norm=loss) for step, loss in enumerate(losses[:301])
        ]
        state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 30_000
    with SpikeRecorder(tmp_path / "rest") as second:
        second.load_state_dict(state)
        found += [
            second.observe(step, losses[step], grad_norm=losses[step]) for step in range(301, 400)
        ]
    assert found == expected
    assert [record["type"] for record in records(tmp_path / "rest")] == ["SPIKE_END"]


def test_ranks_that_agree_all_write_when_one_of_them_sees_it(tmp_path: Path) -> None:
    asked = []

    def agree(own: bool) -> bool:
        asked.append(own)
        return own or len(asked) == 3

    with SpikeRecorder(tmp_path / "s", settings=SETTINGS, agree=agree) as recorder:
        for step in range(4):
            event = recorder.observe(step, torch.tensor(2.0), sample_ids=[step])
            assert (event.kind if event else None) == (ELSEWHERE if step == 2 else None)
    assert asked == [False] * 4
    (spike,) = records(tmp_path / "s")
    assert (spike["event"]["kind"], spike["step"]) == (ELSEWHERE, 2)
    assert [entry["sample_ids"] for entry in spike["steps"]] == [[0], [1], [2]]


class DeviceLoss:
    """Stands in for a loss on a device, whose copy arrives some steps later. Reading it at once
    would be a sync.
    """

    def __init__(self, value: float, ready_at: int, clock: list[int]) -> None:
        self.device = torch.device("cuda")
        self._value = value
        self._ready_at = ready_at
        self._clock = clock

    def __float__(self) -> float:
        raise AssertionError("the device was waited for")

    item = __float__

    def is_ready(self) -> bool:
        return self._clock[0] >= self._ready_at

    def value(self) -> float:
        return self._value


def test_a_loss_on_a_device_is_judged_when_it_has_arrived_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        recorder_module, "is_tensor", lambda value: isinstance(value, (DeviceLoss, torch.Tensor))
    )
    monkeypatch.setattr(recorder_module, "begin_copy", lambda tensor: tensor)
    clock = [0]
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        begun = []
        for step in range(10):
            clock[0] = step
            loss = DeviceLoss(9.0 if step == 5 else 1.0, step + 2, clock)
            begun.append(recorder.observe(step, loss, sample_ids=[step]))
        assert [step for step, event in enumerate(begun) if event] == [7]
        clock[0] = 100
    spike, _ = records(tmp_path / "s")
    assert spike["step"] == 5
    assert spike["steps"][-1]["sample_ids"] == [5]


class DeviceLosses:
    """Stands in for the losses of samples on a device: a copy of it is on its way until the clock
    says so.
    """

    is_cpu = False

    def __init__(self, values: list[float], ready_at: int, clock: list[int]) -> None:
        self._values = values
        self._ready_at = ready_at
        self._clock = clock

    def detach(self) -> "DeviceLosses":
        return self

    clone = detach

    def is_ready(self) -> bool:
        return self._clock[0] >= self._ready_at

    def value(self) -> list[float]:
        return self._values


def test_losses_of_samples_on_a_device_may_come_with_lengths_in_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (recorder_module, held_values):
        monkeypatch.setattr(module, "is_tensor", lambda value: isinstance(value, DeviceLosses))
    monkeypatch.setattr(recorder_module, "begin_copy", lambda tensor: tensor)
    clock = [0]
    with SpikeRecorder(tmp_path / "s") as recorder:
        for step in range(3):
            clock[0] = step
            losses = DeviceLosses([3.0, 3.1], step + 1, clock)
            recorder.observe(
                step, 3.0, sample_ids=[1, 2], sample_losses=losses, token_counts=[4, 5]
            )
        clock[0] = 3
        assert recorder.state_dict()["samples"]["watch"]["model"]["counts"][0] == 6


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingError, match="ring_steps"):
        SpikeSettings(ring_steps=0)
    with pytest.raises(SettingError, match="sample_risk is a small probability"):
        SpikeSettings(sample_risk=0.5)


def test_random_generators_are_told_apart_by_their_digests(tmp_path: Path) -> None:
    torch.manual_seed(1)
    with SpikeRecorder(tmp_path / "s", settings=SETTINGS) as recorder:
        recorder.observe(0, 1.0)
        recorder.observe(1, 1.0)
        torch.rand(1)
        recorder.observe(2, 1.0)
        recorder.observe(3, 9.0, rng=[1, 2])
    first, second, third, own = (entry["rng"] for entry in records(tmp_path / "s")[0]["steps"])
    assert first == second != third
    assert own == [1, 2]
    assert set(records(tmp_path / "s")[0]["generators"]) == {"python", "numpy"}


def test_sixteen_threads_may_share_a_recorder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = SpikeRecorder(tmp_path / "spikes.jsonl")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(16) as pool:
            list(
                pool.map(lambda step: recorder.observe(step, 3.0 + math.sin(step)), range(1, 1601))
            )
    finally:
        sys.setswitchinterval(interval)
        recorder.close()
    assert not caplog.messages
