"""What the callbacks cost a host: CPU of the training's own thread per update, beside the same host
without them.

    python benchmarks/integrations.py

Snapshots are off, so that the steps are told apart from them: `benchmarks/flight.py` measures
those. One process, batches of 8×32 tokens. The figure is the median over the updates of a training.
The ways take turns, a training of each a round, so that a machine which is busy for a while
troubles all alike: told are the best of all rounds against the best without, the median of what
each round cost more than the one without beside it, and how far the rounds lie apart.
"""

import gc
import itertools
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table

from sonde.recorder.options import RecorderOptions
from sonde.spikes.recorder import SpikeSettings

NUM_STEPS = 300
NUM_ROUNDS = 12
NUM_WARM = 50
ROWS = [{"input_ids": torch.randint(0, 64, (32,))} for _ in range(8 * NUM_STEPS)]
WAYS = {
    "without": None,
    "with the callback": RecorderOptions(state_every=0, spikes=SpikeSettings(sample_risk=None)),
    "single samples too": RecorderOptions(state_every=0),
}


class Small(nn.Module):
    """As little model as there can be."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        logits = self.head(self.embedding(input_ids))
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())}


def huggingface(
    folder: Path, settings: RecorderOptions | None, times: list[float]
) -> Callable[[], object]:
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(time.thread_time())

    arguments = TrainingArguments(
        str(folder / "out"),
        max_steps=NUM_STEPS,
        per_device_train_batch_size=8,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    callbacks = [] if settings is None else [SondeCallback(folder / "run", options=settings)]
    trainer = Trainer(Small(), arguments, train_dataset=ROWS, callbacks=[Clock(), *callbacks])
    trainer.remove_callback(PrinterCallback)
    train: Callable[[], object] = trainer.train
    return train


def lightning(
    folder: Path, settings: RecorderOptions | None, times: list[float]
) -> Callable[[], object]:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from sonde.integrations.lightning import SondeCallback

    class Clock(Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            times.append(time.thread_time())

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Small()

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            loss: Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    callbacks = [] if settings is None else [SondeCallback(folder / "run", options=settings)]
    trainer = Trainer(
        accelerator="cpu",
        max_steps=NUM_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[Clock(), *callbacks],
        gradient_clip_val=1.0,
    )
    loader: Any = DataLoader(ROWS, batch_size=8, shuffle=True)  # type: ignore[arg-type]
    return lambda: trainer.fit(Module(), loader)


def measured(host: Callable[..., Callable[[], object]], settings: RecorderOptions | None) -> float:
    """Microseconds of the calling thread's CPU an update: the median of one training."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train = host(Path(folder), settings, times)
        gc.collect()
        train()
    spent = [after - before for before, after in itertools.pairwise(times)]
    return statistics.median(spent[NUM_WARM:]) * 1e6


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    rows = []
    for host in (huggingface, lightning):
        if host.__name__ not in (sys.argv[1:] or host.__name__):
            continue
        measured(host, WAYS["single samples too"])  # everything is loaded before anything counts
        rounds = [
            {way: measured(host, settings) for way, settings in WAYS.items()}
            for _ in range(NUM_ROUNDS)
        ]
        base = [round_["without"] for round_ in rounds]
        rows.append(
            (
                host.__name__,
                "without",
                f"{min(base):.0f}",
                f"{statistics.median(base):.0f}",
                f"{min(base):.0f} to {max(base):.0f}",
            )
        )
        for way in list(WAYS)[1:]:
            more = [round_[way] - round_["without"] for round_ in rounds]
            best = min(round_[way] for round_ in rounds) - min(base)
            rows.append(
                (
                    host.__name__,
                    way,
                    f"+{best:.0f}",
                    f"+{statistics.median(more):.0f}",
                    f"+{min(more):.0f} to +{max(more):.0f}",
                )
            )
    print(
        markdown_table(
            ["host", "µs an update", "best against best", "median of the rounds", "spread"], rows
        )
    )


if __name__ == "__main__":
    main()
