"""A script with a host's own checkpoints that keeps no states in the run: python
checkpointing_hosts.py HOST RUN OUT [--resume CHECKPOINT] [--kill-at N]

The host is Hugging Face's Trainer or Lightning. The batches come in a random order, and the model
has dropout.
"""

import argparse
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from killed_training import SAVE_EVERY, Model, Rows
from torch.utils.data import DataLoader

from sonde.recorder.options import RecorderOptions

NUM_STEPS = 60
OPTIONS = RecorderOptions(state_every=0)


def die(step: int, kill_at: int) -> None:
    """Kill this process after a step, when it is written."""
    if step == kill_at:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)


def huggingface(arguments: argparse.Namespace) -> None:
    """Train with a Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    from sonde.integrations.huggingface import SondeCallback

    class Killer(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        """Kills the process after the step that `kill_at` says."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            die(state.global_step - 1, arguments.kill_at)

    set_seed(7)
    settings = TrainingArguments(
        output_dir=str(arguments.out),
        per_device_train_batch_size=4,
        max_steps=NUM_STEPS,
        learning_rate=1e-3,
        report_to=[],
        save_steps=SAVE_EVERY,
        use_cpu=True,
        disable_tqdm=True,
    )
    watching = SondeCallback(arguments.run, options=OPTIONS)
    callbacks = [watching, Killer()]
    trainer = Trainer(model=Model(), args=settings, train_dataset=Rows(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=arguments.resume)


def lightning(arguments: argparse.Namespace) -> None:
    """Train with Lightning."""
    import lightning.pytorch as pl

    from sonde.integrations.lightning import SondeCallback

    class Module(pl.LightningModule):  # type: ignore[misc]  # lightning has no types
        """The model as Lightning wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def training_step(self, batch: Any, index: int) -> Any:
            """Return the loss."""
            return self.inner(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            """Return the optimizer."""
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Killer(pl.Callback):  # type: ignore[misc]
        """Kills the process after the step that `kill_at` says."""

        def on_train_batch_start(self, trainer: Any, *given: Any) -> None:
            die(trainer.global_step - 1, arguments.kill_at)

    pl.seed_everything(7)
    keeps = pl.callbacks.ModelCheckpoint(
        arguments.out, every_n_train_steps=SAVE_EVERY, save_top_k=-1, filename="{step}"
    )
    trainer = pl.Trainer(
        max_steps=NUM_STEPS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SondeCallback(arguments.run, options=OPTIONS), keeps, Killer()],
    )
    loader = DataLoader(Rows(), 4, shuffle=True)
    trainer.fit(Module(), loader, ckpt_path=arguments.resume)


HOSTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "huggingface": huggingface,
    "lightning": lightning,
}


def main() -> None:
    """Train, resuming if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("host", choices=HOSTS)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--resume")
    parser.add_argument("--kill-at", type=int, default=-1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    HOSTS[arguments.host](arguments)


if __name__ == "__main__":
    main()
