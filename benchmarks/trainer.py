"""µs per update over a bare PyTorch loop: ours with everything on, Lightning with its CSV logger,
Hugging Face's Trainer.

    python benchmarks/trainer.py              about two minutes; peers that are not installed are
                                              left out

The model is Linear(8, 1), a batch has 4 rows, the optimizer is SGD, and the batches are ready in
memory: what is measured is the loop around them. CPU time between every fiftieth batch that a loop
asks for, the best of all such stretches of several trainings that the contenders take in turns:
setting up and tearing down do not count, and a noisy second hits all of them. All log every 50
updates, so each stretch holds one log record; "everything on" is the run's log, a record of every
update, the spike recorder with ids and losses of the samples, nested metrics, phases timed,
gradient norm, and two callbacks that watch every update. The losses are steady: a spike that is
written down is no part of the figure.
"""

import importlib.util
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.run import Run
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer

_STRETCH: Final = 50
_NUM_UPDATES: Final = 1500
_NUM_TURNS: Final = 6
_LOG_INTERVAL: Final = 50
_GATE: Final = 3
_GOAL_MICROSECONDS: Final = 60.0

Batch = tuple[Tensor, Tensor]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    contenders: dict[str, Callable[[_Batches], None]] = {
        "bare loop": _bare,
        "sonde, everything on": _ours,
        "sonde, logging every update": _ours_logging_all,
        "sonde, nothing on": _ours_plain,
    }
    if importlib.util.find_spec("lightning"):
        contenders["Lightning, CSV logger"] = _lightning
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        contenders["Hugging Face Trainer"] = _hugging_face
    best = _microseconds(contenders)
    bare = best["bare loop"]
    ours = best["sonde, everything on"] - best["bare loop"]
    rows = []
    for name, value in best.items():
        over = value - bare
        goal = {
            "sonde, everything on": f"goal: under {_GOAL_MICROSECONDS:.0f} µs",
            "Lightning, CSV logger": f"gate: {_GATE:.0f}x ours",
        }
        verdict = ""
        if name == "sonde, everything on":
            verdict = "yes" if over < _GOAL_MICROSECONDS else "NO"
        elif name == "Lightning, CSV logger":
            verdict = "yes" if over >= _GATE * ours else "NO"
        rows.append(
            [
                name,
                f"{value:.1f}",
                "" if name == "bare loop" else f"{over:.1f}",
                "" if name == "bare loop" else f"{over / ours:.1f}",
                goal.get(name, ""),
                verdict,
            ]
        )
    columns = [
        "an update of Linear(8, 1)",
        "CPU µs",
        "over the bare loop",
        "times ours",
        "goal",
        "met",
    ]
    print(markdown_table(columns, rows))


def _microseconds(contenders: Mapping[str, Callable[["_Batches"], None]]) -> dict[str, float]:
    """CPU µs per update of each: its fastest stretch."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(_NUM_TURNS):
        for name, work in contenders.items():
            batches = _Batches()
            work(batches)
            stretches = [after - before for before, after in pairwise(batches.times)]
            best[name] = min(best[name], *stretches)
    return {name: seconds / _STRETCH * 1e6 for name, seconds in best.items()}


class _Batches(IterableDataset[Batch]):
    """Batches that lie ready, and notes of the CPU time at every so many of them."""

    def __init__(self) -> None:
        features = torch.randn(_STRETCH, 4, 8)
        noise = torch.tensor([[0.5], [-0.5], [0.5], [-0.5]])
        self._batches = [(rows, rows.sum(1, keepdim=True) + noise) for rows in features]
        self.times: list[float] = []

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(_NUM_UPDATES // _STRETCH):
            self.times.append(time.process_time())
            yield from self._batches

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


def _bare(batches: _Batches) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for features, target in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()


def _ours(batches: _Batches) -> None:
    _train_ours(batches, log_interval=_LOG_INTERVAL)


def _ours_logging_all(batches: _Batches) -> None:
    _train_ours(batches, log_interval=1)


def _train_ours(batches: _Batches, *, log_interval: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Run(folder) as run:
        _trainer(batches, run, log_interval).train(
            stop=StopWhen(max_updates=_NUM_UPDATES), callbacks=[_Watching(), _Watching()]
        )


def _ours_plain(batches: _Batches) -> None:
    _trainer(batches, None, _NUM_UPDATES).train(stop=StopWhen(max_updates=_NUM_UPDATES))


def _trainer(batches: _Batches, run: Run | None, log_interval: int) -> Trainer:
    task = _Regression()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.01)
    schedule = Schedule(schedule="constant", lr=0.01)
    settings = TrainerSettings(log_interval=log_interval)
    return Trainer(task, batches, optimizer, schedule=schedule, run=run, settings=settings)


class _Regression:
    def __init__(self) -> None:
        self.model = nn.Linear(8, 1)
        self._sample_ids = [("train", row) for row in range(4)]
        self._sample_losses = torch.ones(4)

    def compute(self, batch: Batch) -> StepOutput:
        features, target = batch
        loss_sum = nn.functional.mse_loss(self.model(features), target, reduction="sum")
        # Losses of samples are the task's to compute; what the recorder does with them is measured.
        return StepOutput(
            loss_sum=loss_sum,
            weight=4,
            sample_ids=self._sample_ids,
            sample_losses=self._sample_losses,
        )


class _Watching(Callback):
    def __init__(self) -> None:
        self._highest = 0.0

    @override
    def on_step_start(self, context: Context) -> None:
        self._started = context.step

    @override
    def on_step_end(self, context: Context) -> None:
        self._highest = max(self._highest, context.tensors["loss"], context.grad_norm or 0.0)


def _lightning(batches: _Batches) -> None:
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    class Regression(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(8, 1)

        def training_step(self, batch: Batch, _: int) -> Tensor:
            features, target = batch
            loss = nn.functional.mse_loss(self.model(features), target)
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    _be_quiet()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=_NUM_UPDATES,
            accelerator="cpu",
            logger=CSVLogger(folder),
            log_every_n_steps=_LOG_INTERVAL,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(Regression(), train_dataloaders=DataLoader(batches, batch_size=None))


def _hugging_face(batches: _Batches) -> None:
    import transformers

    class Regression(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(8, 1)

        def forward(self, batch: Batch) -> dict[str, Tensor]:
            features, target = batch
            return {"loss": nn.functional.mse_loss(self.model(features), target)}

    model = Regression()

    class Ready(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return DataLoader(batches, batch_size=None, collate_fn=lambda batch: {"batch": batch})

    _be_quiet()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=_NUM_UPDATES,
            per_device_train_batch_size=4,
            logging_steps=_LOG_INTERVAL,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        trainer = Ready(model, arguments, train_dataset=batches, optimizers=(optimizer, schedule))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def _be_quiet() -> None:
    for name in ("lightning", "lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
