"""Writes the files beside it, with the tools that people have: `python write.py`.

Written with torch 2.13.0 and tensorboard 2.21.0, wandb 0.31.0 (offline), transformers 5.22.2.
"""

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def tensorboard(folder: Path) -> None:
    import numpy as np
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(folder)
    for step in range(1, 6):
        writer.add_scalar("train/loss", 2 / step, step)
        writer.add_scalar("train/lr", 0.5, step)
    writer.add_scalar("eval/loss", math.nan, 5)
    writer.add_scalar("eval/as_tensor", 1.25, 5, new_style=True)
    writer.add_scalar("eval/as_double", 0.1, 5, new_style=True, double_precision=True)
    writer.add_text("args", '{"lr": 0.5}')
    writer.add_histogram("weights", np.arange(10.0), 5)
    writer.close()
    (path,) = folder.iterdir()
    path.rename(HERE / "events.out.tfevents")


def wandb(folder: Path) -> None:
    import wandb as library

    settings = library.Settings(
        console="off", x_disable_stats=True, x_disable_meta=True, disable_code=True, host="host"
    )
    run = library.init(
        mode="offline",
        dir=folder,
        project="translation",
        name="first",
        config={"lr": 0.5, "model": {"dim": 8}},
        settings=settings,
    )
    run.define_metric("train/global_step")
    run.define_metric("*", step_metric="train/global_step")
    for step in range(1, 6):
        values = {
            "nested": {"whole": step, "ok": True},
            "text": "hello",
            "nothing": None,
            "nan": math.nan,
        }
        run.log({"train/loss": 2 / step, "train/global_step": 10 * step, **values})
    run.log(
        {
            "weights": library.Histogram([1.0, 2.0, 3.0]),
            "train/global_step": 60,
            "long": "x" * 20_000,
        }
    )
    run.log({"train/loss": 0.25, "train/global_step": 70})
    run.finish()
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    shutil.copyfile(path, HERE / "run.wandb")


def trainer_state(folder: Path) -> None:
    import torch
    from torch import Tensor, nn
    from transformers import Trainer, TrainingArguments

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.linear(x).square().mean()}

    arguments = TrainingArguments(
        str(folder),
        max_steps=6,
        logging_steps=2,
        save_steps=6,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    rows: Any = [{"x": torch.ones(2)} for _ in range(64)]
    torch.manual_seed(1)
    Trainer(Small(), arguments, train_dataset=rows).train()
    shutil.copyfile(folder / "checkpoint-6" / "trainer_state.json", HERE / "trainer_state.json")


def main() -> None:
    """All three."""
    for write in (tensorboard, wandb, trainer_state):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))


if __name__ == "__main__":
    main()
