"""The callback beside the same Trainer of Lightning without it: the same weights, and everything
that happened in the run.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sonde.records.journal import read_steps
from sonde.records.layout import LOG, RunLayout
from sonde.records.reader import read_records
from sonde.spikes.spike_log import read_spikes

# the import alone takes seconds, and warns
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GARBLED = 1500


def rows(num: int) -> list[Tensor]:
    """Numbers that follow one another, and one row of noise."""
    dice = random.Random(1)
    found = []
    for number in range(num):
        start = dice.randrange(8)
        codes = [(start + at) % 8 for at in range(24)]
        found.append(
            torch.tensor([dice.randrange(64) for _ in codes] if number == GARBLED else codes)
        )
    return found


def fit(
    callbacks: list[Any],
    *,
    manual: bool = False,
    num_rows: int = 320,
    num_each: int = 8,
    **given: Any,
) -> nn.Module:
    from lightning.pytorch import LightningModule, Trainer, seed_everything

    class Small(LightningModule):  # type: ignore[misc]  # a library without types
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual
            self.embedding = nn.Embedding(64, 16)
            self.dropout = nn.Dropout(0.1)
            self.head = nn.Linear(16, 64)

        def training_step(self, batch: Tensor) -> Tensor:
            logits = self.head(self.dropout(self.embedding(batch)))
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
            self.log("shown", loss)
            if manual:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(
                    optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm"
                )
                optimizer.step()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    seed_everything(1, verbose=False)
    settings: dict[str, Any] = {
        "max_steps": 12,
        "logger": False,
        "gradient_clip_val": None if manual else 1.0,
        **given,
    }
    trainer = Trainer(
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=4,
        callbacks=callbacks,
        **settings,
    )
    module = Small()
    data: Any = rows(num_rows)
    trainer.fit(module, DataLoader(data, batch_size=num_each, shuffle=True))
    return module


def test_a_script_is_recorded_because_the_environment_asks_for_it_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sonde.integrations.lightning import SondeCallback

    fit([], max_steps=2)
    monkeypatch.setenv("SONDE_LIGHTNING_RUN", str(tmp_path / "asked"))
    fit([], max_steps=2)
    assert sorted(read_steps(tmp_path / "asked").by_number) == [1, 2]
    monkeypatch.setenv("SONDE_LIGHTNING_RUN", str(tmp_path / "other"))
    fit([SondeCallback(tmp_path / "own")], max_steps=2)
    assert sorted(read_steps(tmp_path / "own").by_number) == [1, 2]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "given",
    [{}, {"accumulate_grad_batches": 2}, {"manual": True}, {"precision": "bf16-mixed"}],
    ids=str,
)
def test_training_is_the_same_with_and_without_the_callback(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    from sonde.integrations.lightning import SondeCallback

    watched = fit([SondeCallback(tmp_path / "run")], **given)
    alone = fit([], **given)
    assert all(
        torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True)
    )
    steps = read_steps(tmp_path / "run").by_number
    assert sorted(steps) == list(range(1, 13))
    assert all(step.grad_norm and step.lr for step in steps.values())


def test_one_garbled_row_of_32_is_noticed_by_its_own_loss_and_what_is_logged_goes_into_the_run(
    tmp_path: Path,
) -> None:
    from sonde.integrations.lightning import SondeCallback, SondeLogger

    callback = SondeCallback(tmp_path / "run")
    logger = SondeLogger(tmp_path / "run")
    fit([callback], num_rows=1600, num_each=32, max_steps=100, max_epochs=2, logger=logger)
    assert GARBLED in [sample.sample for sample in read_spikes(tmp_path / "run").samples]
    records = list(read_records(RunLayout(tmp_path / "run").record_file(LOG, 0)))
    assert len([record for record in records if "shown" in record["data"]]) == 25
    assert callback.run is None
    assert not RunLayout(tmp_path / "run").lock.exists()


def test_the_logger_alone_makes_a_run_of_what_lightning_logs(tmp_path: Path) -> None:
    from sonde.integrations.lightning import SondeLogger

    fit([], logger=SondeLogger(tmp_path / "run"))
    records = list(read_records(RunLayout(tmp_path / "run").record_file(LOG, 0)))
    assert [record["step"] for record in records if "shown" in record["data"]] == [3, 7, 11]
