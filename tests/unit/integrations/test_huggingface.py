"""The callback beside the same Trainer without it: the same weights, and everything that happened
in the run.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.cli.main import run as sonde
from sonde.records.journal import read_steps
from sonde.records.layout import LOG, RunLayout
from sonde.records.reader import read_records
from sonde.spikes.spike_log import read_spikes

# the import alone takes seconds, and warns
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GARBLED = 1500
LETTERS = "abcdefgh"


class Small(nn.Module):
    """Predicts the next letter from the one before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(128, 16)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 128)

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        logits = self.head(self.dropout(self.embedding(input_ids)))
        return {
            "loss": F.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), input_ids[:, 1:].flatten()
            )
        }


def rows(num: int = 320) -> list[dict[str, Tensor]]:
    """Letters that follow one another, and one row of noise."""
    dice = random.Random(1)
    found = []
    for number in range(num):
        start = dice.randrange(len(LETTERS))
        codes = [ord(LETTERS[(start + at) % len(LETTERS)]) for at in range(24)]
        found.append(
            {
                "input_ids": torch.tensor(
                    [dice.randrange(33, 127) for _ in codes] if number == GARBLED else codes
                )
            }
        )
    return found


class Letters:
    """As much of a tokenizer as the callback asks for."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))

    def save_pretrained(self, *_: Any, **__: Any) -> None: ...


def train(
    folder: Path, callbacks: list[Any], *, num_rows: int = 320, **arguments: Any
) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    given: dict[str, Any] = {
        "max_steps": 12,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "logging_steps": 4,
        **arguments,
    }
    settings = TrainingArguments(
        str(folder / "out"), use_cpu=True, report_to=[], disable_tqdm=True, **given
    )
    data: Any = rows(num_rows)
    trainer = Trainer(
        Small(), settings, train_dataset=data, processing_class=Letters(), callbacks=callbacks
    )
    trainer.train()
    model: nn.Module = trainer.model
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    "arguments", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}], ids=str
)
def test_training_is_the_same_with_and_without_the_callback(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    from sonde.integrations.huggingface import SondeCallback

    watched = train(
        tmp_path,
        [SondeCallback(tmp_path / "run")],
        **arguments,
    )
    assert same(watched, train(tmp_path, [], **arguments))
    steps = read_steps(tmp_path / "run").by_number
    assert sorted(steps) == list(range(1, 13))
    assert all(step.grad_norm and step.lr for step in steps.values())
    logged = [
        record
        for record in read_records(RunLayout(tmp_path / "run").record_file(LOG, 0))
        if "loss" in record["data"]
    ]
    assert [record["step"] for record in logged] == [4, 8, 12]


@pytest.mark.parametrize(
    ("warmup_steps", "schedule", "is_told"),
    [(12, "linear", True), (11, "linear", False), (12, "constant", False)],
)
def test_a_warm_up_that_outlasts_the_training_is_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    warmup_steps: int,
    schedule: str,
    is_told: bool,
) -> None:
    from sonde.integrations.huggingface import SondeCallback

    callback = SondeCallback(tmp_path / "run")
    train(tmp_path, [callback], warmup_steps=warmup_steps, lr_scheduler_type=schedule)
    told = [message for message in caplog.messages if "warms up for 12 steps" in message]
    assert bool(told) is is_told


def test_one_garbled_row_of_32_is_noticed_by_its_own_loss(tmp_path: Path) -> None:
    from sonde.integrations.huggingface import SondeCallback

    callback = SondeCallback(tmp_path / "run")
    train(tmp_path, [callback], num_rows=1600, max_steps=75, per_device_train_batch_size=32)
    assert GARBLED in [sample.sample for sample in read_spikes(tmp_path / "run").samples]


def test_a_garbled_row_of_8_is_shown_with_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sonde.integrations.huggingface import SondeCallback

    train(tmp_path, [SondeCallback(tmp_path / "run")], num_rows=1600, max_steps=400)
    spike = read_spikes(tmp_path / "run").spikes[-1]
    noise = "".join(map(chr, rows(1600)[GARBLED]["input_ids"].tolist()))
    for more in ([], ["--step", str(spike.event.first_step)]):
        capsys.readouterr()
        assert sonde(["spikes", str(tmp_path / "run"), *more]) == 0
        assert noise[2:10] in capsys.readouterr().out
