import logging
import math
from pathlib import Path

import pytest
import torch
from recorder_loops import NUM_ROWS, NUM_TOKENS, Model, Training, batches, same
from torch import nn

from sonde.errors import SettingError, TrainingStopped
from sonde.forensics.verdict import read_verdict
from sonde.recorder.options import RecorderOptions, split_on_event
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.run import Run
from sonde.spikes.recorder import SpikeSettings
from sonde.spikes.robust_rule import RobustRule
from sonde.spikes.spike_log import read_spikes

SETTINGS = RecorderOptions(state_every=20, log_every=5)


def test_every_update_is_recorded_with_its_loss_rate_and_gradient_norm(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    losses = training.train(12)
    steps = read_steps(tmp_path / "run").by_number
    assert list(steps) == list(range(1, 13))
    assert [step.loss for step in steps.values()] == losses
    assert steps[1].lr == 1e-2
    assert steps[12].lr < steps[1].lr
    assert all(step.grad_norm is not None and step.grad_norm > 0 for step in steps.values())
    assert steps[1].weight == NUM_ROWS * NUM_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("tells_loss", [False, True])
def test_training_that_is_watched_and_investigated_equals_training_that_is_not(
    tmp_path: Path, tells_loss: bool
) -> None:
    bare = Training(tells_loss=tells_loss)
    watched = Training(tmp_path / "run", tells_loss=tells_loss, settings=SETTINGS)
    expected = bare.train(150, garbled=90, high_rate_at=140)
    assert watched.train(150, garbled=90, high_rate_at=140) == expected
    assert same(bare.everything(), watched.everything())
    assert [spike.event.first_step for spike in read_spikes(tmp_path / "run").spikes] == [90, 141]


def test_the_scene_of_a_garbled_row_names_it_with_its_text_and_worst_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path / "run", settings=SETTINGS)
    training.train(100, garbled=90)
    verdict = read_verdict(tmp_path / "run", 90)
    first = verdict.causes[0]
    row = list(batches(90, garbled=90))[-1][1][2]
    assert first.cause == "garbled_text"
    assert first.suspects[0].text == "".join(map(chr, row.tolist()))
    assert first.suspects[0].dataset == "content"
    assert any("worst tokens" in line for line in first.evidence)
    assert "the same to the bit" in verdict.experiments[0].found
    spike = read_spikes(tmp_path / "run").at(90)
    worst = spike.samples()[0]
    assert (worst.dataset, worst.sample) == ("content", first.suspects[0].sample)
    assert worst.token_losses is not None
    assert len(worst.token_losses) == NUM_TOKENS
    assert [message for message in caplog.messages if message.startswith("step 90: loss")]


def test_the_scene_after_a_high_learning_rate_blames_the_rate_and_no_sample(tmp_path: Path) -> None:
    Training(tmp_path / "run", settings=SETTINGS).train(130, high_rate_at=120)
    first = read_verdict(tmp_path / "run", 121).causes[0]
    assert (first.cause, first.setting, first.suspects) == ("learning_rate", "lr", ())


def test_the_loss_comes_from_the_step_function_where_nothing_else_gives_it(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", model=lambda: Model(returns_loss=False))

    def train_step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = nn.functional.cross_entropy(
            training.model(batch[0]).flatten(0, 1), batch[1].flatten()
        )
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        return loss

    assert training.recorder is not None
    losses = [training.recorder.step(train_step, batch).item() for batch in batches(5)]
    training.close()
    assert [record.loss for record in read_steps(tmp_path / "run").by_number.values()] == losses


def test_skip_without_a_loss_before_the_update_only_records_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path / "run", model=lambda: Model(returns_loss=False), on_event="skip")

    def train_step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss = training.model(batch[0]).square().mean()
        loss.backward()
        training.optimizer.step()
        return torch.tensor(1.0)

    assert training.recorder is not None
    training.recorder.step(train_step, next(batches(1)))
    training.close()
    assert 'on_event="skip" can only record' in caplog.text
    assert list(read_steps(tmp_path / "run").by_number) == [1]


def test_skip_drops_the_gradients_of_the_bad_update_alone(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", settings=RecorderOptions(state_every=50), on_event="skip")
    moved = []
    for batch in batches(100, garbled=90):
        before = training.weight()
        training.make(batch)
        moved.append(not torch.equal(before, training.weight()))
    training.close()
    steps = read_steps(tmp_path / "run").by_number
    assert [number for number, record in steps.items() if record.skipped == "the loss jumped"] == [
        90
    ]
    assert [number for number, has_moved in enumerate(moved, 1) if not has_moved] == [90]


def test_stop_ends_the_run_before_the_bad_update_moves_anything(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", settings=RecorderOptions(), on_event="stop")
    for batch in batches(89):
        training.make(batch)
    before = training.weight()
    bad = list(batches(90, garbled=90))[-1]
    with pytest.raises(TrainingStopped, match="step 90"):
        training.make(bad)
    training.close()
    assert torch.equal(before, training.weight())
    assert read_steps(tmp_path / "run").by_number[90].skipped == "the run was stopped"


def test_two_micro_batches_make_one_update_with_the_mean_of_their_losses(tmp_path: Path) -> None:
    bare = Training()
    watched = Training(tmp_path / "run")
    losses = {}
    for training in (bare, watched):
        torch.manual_seed(5)
        losses[training] = [
            training.make(batch, at % 2 == 1).item() for at, batch in enumerate(batches(20))
        ]
    watched.close()
    steps = read_steps(tmp_path / "run").by_number
    expected = losses[bare]
    assert losses[watched] == expected
    assert [step.loss for step in steps.values()] == [
        (expected[at] + expected[at + 1]) / 2 for at in range(0, 20, 2)
    ]
    assert steps[1].weight == 2 * NUM_ROWS * NUM_TOKENS
    assert same(bare.everything(), watched.everything())


@pytest.mark.slow
def test_with_hooks_alone_a_loop_is_recorded_and_events_are_investigated(tmp_path: Path) -> None:
    bare = Training()
    watched = Training(tmp_path / "run", settings=SETTINGS)
    for training in (bare, watched):
        torch.manual_seed(5)
        for batch in batches(100, garbled=90):
            training.train_step(batch)  # not through recorder.step
    watched.close()
    assert same(bare.everything(), watched.everything())
    assert len(read_steps(tmp_path / "run").by_number) == 100
    assert read_verdict(tmp_path / "run", 90).causes[0].cause == "garbled_text"


def test_evaluation_between_updates_is_no_update(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    for batch in batches(4):
        training.make(batch)
        training.model.eval()
        with torch.no_grad():
            training.model(*batch)
        training.model.train()
    training.close()
    assert len(read_steps(tmp_path / "run").by_number) == 4


def test_names_of_samples_come_from_the_batch_or_from_a_function(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rule = SpikeSettings(rule=RobustRule())
    with Run(tmp_path / "run") as run:
        recorder = Recorder(
            run, model, optimizer, options=RecorderOptions(spikes=rule, state_every=0)
        )

        def train_step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss = recorder.loss(model(batch["x"]).square().mean() * 0 + batch["loss"])
            loss.backward()
            optimizer.step()
            return loss

        for number in range(80):
            ids = torch.tensor([2 * number, 2 * number + 1])
            value = 50.0 if number == 70 else 1.0 + 0.01 * math.sin(number)
            recorder.step(
                train_step, {"x": torch.ones(2, 4), "loss": torch.tensor(value), "sample_ids": ids}
            )
    spike = read_spikes(tmp_path / "run").at(71)
    assert {sample.sample for sample in spike.samples()} == {140, 141}


def test_a_scene_that_fails_is_told_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path / "run", settings=SETTINGS)
    assert training.recorder is not None

    def broken(*_: object) -> None:
        raise RuntimeError("no scene")

    # replaced for this test
    training.recorder.training.loss_again = broken  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.WARNING):
        training.train(100, garbled=90)
    assert len(read_steps(tmp_path / "run").by_number) == 100
    assert [spike.event.first_step for spike in read_spikes(tmp_path / "run").spikes] == [90]
    assert any("cannot be looked into" in message for message in caplog.messages)


def test_closing_takes_every_hook_off(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    clip = nn.utils.clip_grad_norm_
    training.train(3)
    assert nn.utils.clip_grad_norm_ is not clip
    assert not training.model._forward_hooks
    assert not training.model._forward_pre_hooks


def test_a_setting_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SettingError, match="on_event"):
        split_on_event("ignore")
    with pytest.raises(SettingError, match="recent_steps is 0\ncause: Expected `int` >= 1"):
        RecorderOptions(recent_steps=0)


def test_deepspeed_is_refused_before_the_first_step(tmp_path: Path) -> None:
    engine = type("DeepSpeedEngine", (nn.Linear,), {"__module__": "deepspeed.runtime.engine"})
    model = engine(2, 2)
    with pytest.raises(SettingError, match="DeepSpeed"):
        Recorder(tmp_path / "run", model, torch.optim.SGD(model.parameters()))


def test_training_that_goes_on_from_the_state_before_an_event_makes_the_same_steps_again(
    tmp_path: Path,
) -> None:
    losses = Training(tmp_path / "run", settings=SETTINGS).train(92, garbled=90)
    again = Training(tmp_path / "run", settings=SETTINGS)
    assert again.recorder is not None
    assert again.recorder.restore() == 89
    fed = list(batches(92, garbled=90))[89:]
    assert [again.make(batch).item() for batch in fed] == losses[89:]
    again.close()
