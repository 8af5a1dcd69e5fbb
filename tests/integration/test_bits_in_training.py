"""Bits per character are watched while a loop of one's own trains, if tokens can be decoded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sonde
from sonde.spikes.sample_watch import BITS
from sonde.spikes.spike_log import read_spikes
from sonde.spikes.step_entry import StepEntry

_VOCABULARY = 8
_ROWS = 32
_LENGTH = 64
_BAD_STEP = 601
_BAD_ROW = 5


def _train(directory: Path, decode: Callable[[list[int]], str], num_steps: int) -> None:
    """Train on rows of two micro-batches, whose first target does not count."""
    torch.manual_seed(3)
    model = nn.Embedding(_VOCABULARY, _VOCABULARY)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    recorder = sonde.Recorder(directory, model, optimizer, decode=decode)

    def train_step(tokens: Tensor, last: bool) -> Tensor:
        targets = tokens[:, 1:].clone()
        targets[:, 0] = -100
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), targets.flatten())
        recorder.loss(loss).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    with recorder:
        for place in range(2 * num_steps):
            tokens = torch.randint(_VOCABULARY - 1, (4, 6))
            recorder.step(train_step, tokens, last=place % 2 == 1)


def test_a_row_of_many_cheap_tokens_is_recorded_with_what_it_stood_out_by(tmp_path: Path) -> None:
    numbers = np.random.default_rng(4)
    characters = np.zeros(_ROWS)

    def count(_: StepEntry, rows: Sequence[int]) -> list[int]:
        return [int(characters[row]) for row in rows]

    with sonde.Run(tmp_path / "run") as run:
        recorder = run.spikes(characters=count)
        for step in range(1, _BAD_STEP + 1):
            losses = 3 + numbers.normal(0, 0.25, _ROWS)
            characters = 256 * np.exp(numbers.normal(0, 0.06, _ROWS))
            if step == _BAD_STEP:
                losses[_BAD_ROW] = 3.8
                characters[_BAD_ROW] = 100
            recorder.observe(
                step,
                float(losses.mean()),
                sample_ids=list(range(_ROWS)),
                sample_losses=losses,
                token_counts=np.full(_ROWS, _LENGTH),
            )
    found = read_spikes(tmp_path / "run").samples
    assert [(row.step, row.sample, row.measure) for row in found] == [(_BAD_STEP, _BAD_ROW, BITS)]


def test_a_token_of_ones_own_loop_is_decoded_once(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def decode(tokens: list[int]) -> str:
        asked.append(tokens)
        return "abc"

    _train(tmp_path / "run", decode, 12)
    assert sorted(asked) == [[token] for token in range(_VOCABULARY - 1)]


def test_a_decoder_that_fails_is_told_once_and_not_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[list[int]] = []

    def fail(tokens: list[int]) -> str:
        asked.append(tokens)
        raise SystemExit(f"no text for {tokens}")

    _train(tmp_path / "run", fail, 12)
    assert len(asked) == 1
    assert len([text for text in caplog.messages if "bits per character" in text]) == 1
