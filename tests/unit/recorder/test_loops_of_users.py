"""Loops as people write them: batches that are used again, scalers, small disks, losses that no
hook sees; and how little the recorder needs.
"""

import copy
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from recorder_loops import NUM_TOKENS, Model, Training, batches, same
from torch import Tensor, nn

from sonde.cli.main import run as sonde
from sonde.errors import SondeError
from sonde.forensics.verdict import read_verdict
from sonde.recorder.batch_file import KeptBatches
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.reader import read_records
from sonde.run import Run
from sonde.texts import languages

SETTINGS = RecorderOptions(state_every=20)


@pytest.mark.parametrize("through_numpy", [False, True])
def test_a_loader_that_writes_over_its_batches_is_recorded_with_what_was_trained_on(
    tmp_path: Path, through_numpy: bool
) -> None:
    bare = Training()
    watched = Training(tmp_path / "run", settings=SETTINGS)
    fed = list(batches(60))
    arrays = [np.empty((6, NUM_TOKENS), np.int64) for _ in range(2)]
    buffers = (
        [torch.from_numpy(array) for array in arrays]
        if through_numpy
        else [torch.empty_like(tensor) for tensor in fed[0]]
    )
    for training in (bare, watched):
        torch.manual_seed(5)
        for batch in fed:
            for place, content in enumerate(batch):
                if through_numpy:
                    arrays[place][:] = content.numpy()  # torch does not see this
                else:
                    buffers[place].copy_(content)
            training.make((buffers[0], buffers[1]))
    watched.close()
    assert same(bare.everything(), watched.everything())
    kept = KeptBatches(tmp_path / "run" / "flight", 0)
    assert kept.steps()[0] == 1
    assert set(range(21, 61)) <= set(kept.steps())
    for step in kept.steps():
        assert all(map(torch.equal, kept.load(step).micro[0].tensors, fed[step - 1]))


def test_an_update_whose_scaled_gradients_overflow_is_recorded_as_skipped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with Run(tmp_path / "run") as run:
        recorder = Recorder(run, model, optimizer, options=SETTINGS, scaler=scaler)

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(*batch)[1]
            scaler.scale(loss).backward()
            if recorder.num_updates == 4:
                # there after a backward
                model.head.weight.grad.fill_(float("inf"))  # type: ignore[union-attr]
            scaler.step(optimizer)
            scaler.update()
            return loss

        losses = [recorder.step(train_step, batch).item() for batch in batches(8)]
    steps = read_steps(tmp_path / "run").by_number
    assert [step.loss for step in steps.values()] == losses
    assert [number for number, record in steps.items() if record.skipped] == [5]
    assert scaler.get_scale() == 2.0


def test_a_budget_of_disk_thins_what_is_kept_and_stops_nothing(tmp_path: Path) -> None:
    losses = Training().train(120)
    settings = RecorderOptions(state_every=10, keep_states=8, max_bytes=600_000)
    assert Training(tmp_path / "run", settings=settings).train(120) == losses
    used = sum(
        path.stat().st_size for path in (tmp_path / "run" / "flight").rglob("*") if path.is_file()
    )
    assert used < 2 * settings.max_bytes
    assert len(read_steps(tmp_path / "run").by_number) == 120


def test_a_state_larger_than_the_budget_is_told_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Training(tmp_path / "run", settings=RecorderOptions(max_bytes=1000)).train(
        5
    ) == Training().train(5)
    assert any("no states are kept" in message for message in caplog.messages)
    events = list(read_records(RunLayout(tmp_path / "run").record_file(EVENTS, 0)))
    assert [event["what"] for event in events if event.get("event") == "recorder_notice"] == [
        "budget"
    ]


def test_random_damage_of_a_flight_file_is_survived(tmp_path: Path) -> None:
    Training(tmp_path / "run", settings=SETTINGS).train(6)
    (path,) = (tmp_path / "run" / "flight").glob("batches-*.bin")
    whole = path.read_bytes()
    rng = random.Random(1)
    for _ in range(60):
        damaged = bytearray(whole[: rng.randrange(len(whole))])
        for _ in range(rng.randrange(4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256) if damaged else 0
        path.write_bytes(damaged)
        kept = KeptBatches(path.parent, 0)
        for step in range(1, 7):
            try:
                assert kept.load(step).step == step
            except SondeError as error:
                # most of them are refused, and which ones does not matter
                assert str(error)  # noqa: PT017


class Fused(Model):
    """Its loss is no `F.cross_entropy` that anybody could watch."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> object:
        """Scores, and their loss."""
        assert y is not None
        logits: Tensor = super().forward(x)
        return logits, token_losses_of(logits, y).mean()


def token_losses_of(logits: Tensor, y: Tensor) -> Tensor:
    return logits.logsumexp(-1) - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def test_a_function_of_the_users_gives_the_losses_of_tokens_where_the_loss_is_a_fused_kernel(
    tmp_path: Path,
) -> None:
    def token_losses(batch: tuple[Tensor, Tensor]) -> Tensor:
        return token_losses_of(training.model(*batch)[0], batch[1])

    settings = RecorderOptions(state_every=20, token_losses=token_losses)
    training = Training(tmp_path / "run", model=Fused, settings=settings)
    bare = Training(model=Fused)
    assert training.train(100, garbled=90) == bare.train(100, garbled=90)
    assert same(training.everything(), bare.everything())
    first = read_verdict(tmp_path / "run", 90).causes[0]
    row = list(batches(90, garbled=90))[-1][1][2]
    # The batch's tokens are its inputs: the first tensor of it. They are the targets but for the
    # last.
    assert first.cause == "garbled_text"
    assert "".join(map(chr, row.tolist()))[:-1] in first.suspects[0].text


def test_spikes_shows_the_text_of_samples_that_are_named_by_their_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Training(tmp_path / "run", settings=SETTINGS).train(95, garbled=90)
    text = "".join(map(chr, list(batches(90, garbled=90))[-1][1][2].tolist()))
    assert sonde(["spikes", str(tmp_path / "run"), "--step", "90"]) == 0
    assert text in capsys.readouterr().out


def test_what_takes_long_to_load_is_loaded_before_there_is_an_event(tmp_path: Path) -> None:
    languages._identifier.cache_clear()
    training = Training(tmp_path / "run", settings=SETTINGS)
    for batch in batches(30):
        training.make(batch)
    training.close()
    for thread in threading.enumerate():
        if thread.name == "sonde-languages":
            thread.join()
    assert languages._identifier.cache_info().currsize == 1


def test_accumulation_with_a_scaler_and_without_last_is_one_update(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with Recorder(tmp_path / "run", model, optimizer, scaler=scaler) as recorder:
        for number in range(12):

            def step(batch: torch.Tensor, *, is_last: bool = number % 3 == 2) -> torch.Tensor:
                loss = recorder.loss(model(batch).square().mean())
                scaler.scale(loss / 3).backward()
                if is_last:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                return loss

            recorder.step(step, torch.randn(2, 4))
    steps = read_steps(tmp_path / "run").by_number
    assert list(steps) == [1, 2, 3, 4]
    assert not any(step.skipped for step in steps.values())
    assert copy.deepcopy(scaler).get_scale() == scaler.get_scale()
