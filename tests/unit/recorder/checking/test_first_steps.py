"""What every recorded training is told about its first updates, and that a right one is told
nothing.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.records.journal import RECORDER_NOTICE, read_events


class Loop:
    """A small classifier, with one thing wrong or none."""

    def __init__(self, run: Path, bug: str, options: RecorderOptions | None = None) -> None:
        torch.manual_seed(0)
        self.bug = bug
        self.model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.1), nn.Linear(16, 4))
        held: Iterator[nn.Parameter] = self.model.parameters()
        if bug in ("half_held", "thawed_alone", "thawed"):
            held = self.model[2].parameters()
        if bug in ("thawed_alone", "thawed"):
            self.model[0].requires_grad_(False)
        rate = 0.0 if bug == "no_rate" else 0.05
        self.optimizer = torch.optim.SGD(held, lr=rate)
        if bug == "evaluating":
            self.model.eval()
        self.recorder = Recorder(run, self.model, self.optimizer, options=options)

    def train(self, num_steps: int) -> None:
        """Train for some steps, and close."""
        for step in range(num_steps):
            if self.bug == "evaluates_later" and step == 12:
                self.model.eval()
            if self.bug in ("thawed_alone", "thawed") and step == 10:
                self.model[0].requires_grad_(True)
            if self.bug == "thawed" and step == 10:
                self.optimizer.add_param_group({"params": self.model[0].parameters()})
            seed = 0 if self.bug == "same_rows" else step
            rows = torch.randn(8, 12, generator=torch.Generator().manual_seed(seed))
            self.recorder.step(self.step, (rows, rows[:, :4].argmax(1)))
        self.recorder.close()

    def step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Do all that happens to one batch."""
        if self.bug != "piles_up":
            self.model.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return self.recorder.loss(loss).detach()


Told = Callable[[str], list[str]]


@pytest.fixture
def told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Told:
    def run(bug: str, options: RecorderOptions | None = None) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="sonde"):
            Loop(tmp_path / bug, bug, options).train(20)
        return [record.getMessage() for record in caplog.records]

    return run


@pytest.mark.parametrize(
    ("bug", "word"),
    [
        ("piles_up", "pile up"),
        ("evaluating", "evaluation mode"),
        ("evaluates_later", "evaluation mode"),
        ("thawed_alone", "0.weight"),
        ("half_held", "nothing trains them"),
        ("no_rate", "rate is 0"),
        ("same_rows", "the same 8 rows"),
    ],
)
def test_a_mistake_of_the_first_updates_is_told_in_one_line(
    told: Told, bug: str, word: str
) -> None:
    lines = told(bug)

    assert len(lines) == 1
    assert word in lines[0]


@pytest.mark.parametrize("bug", ["none", "thawed"])
def test_a_right_training_is_told_nothing(told: Told, bug: str) -> None:
    assert told(bug) == []


def test_an_option_turns_the_look_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = RecorderOptions(checks=False)
    with caplog.at_level(logging.WARNING, logger="sonde"):
        Loop(tmp_path / "run", "piles_up", options).train(12)

    assert caplog.records == []


def test_the_look_changes_no_bit_of_training(tmp_path: Path) -> None:
    looked = Loop(tmp_path / "a", "none")
    looked.train(12)
    unseen = Loop(tmp_path / "b", "none", RecorderOptions(checks=False))
    unseen.train(12)

    pairs = zip(looked.model.parameters(), unseen.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_a_mistake_of_a_resumed_training_holds_from_the_resume_on(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", "evaluating")
    loop.recorder.num_updates = 76
    loop.train(20)
    notices = read_events(tmp_path / "run", RECORDER_NOTICE)
    since = [notice["since"] for notice in notices if notice["what"] == "check train_mode"]
    assert since == [77]
