"""A training that is killed and resumes by itself: python killed_training.py HOST RUN

Each time it starts, it goes on from its newest checkpoint that is whole. In the end it writes a
digest of its weights to RUN.done.
"""

import hashlib
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

NUM_STEPS = 90
SAVE_EVERY = 10


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = torch.randn(NUM_STEPS * 2, 8, generator=torch.Generator().manual_seed(4))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"x": self.rows[number]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        time.sleep(0.005)  # so that a kill finds it at work
        return {"loss": self.inner(x).square().mean()}


def own_loop(run: Path) -> nn.Module:
    import sonde

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = sonde.RecorderOptions(state_every=SAVE_EVERY)
    rows = Rows().rows

    def train_step(batch: Tensor) -> Tensor:
        loss: Tensor = model(batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    with sonde.Recorder(run, model, optimizer, options=options) as recorder:
        for step in range(recorder.restore(), NUM_STEPS):
            recorder.step(train_step, rows[2 * step : 2 * step + 2])
    return model


def huggingface(run: Path) -> nn.Module:
    from transformers import Trainer, TrainingArguments, set_seed

    import sonde
    from sonde.integrations.huggingface import SondeCallback

    set_seed(7)
    model = Model()
    settings = TrainingArguments(
        output_dir=f"{run}-out",
        per_device_train_batch_size=4,
        max_steps=NUM_STEPS,
        learning_rate=1e-3,
        report_to=[],
        save_steps=SAVE_EVERY,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=settings, train_dataset=Rows(), callbacks=[SondeCallback(run)]
    )
    # Its state is what a Trainer writes last.
    whole = sorted(
        (path.parent for path in Path(f"{run}-out").glob("checkpoint-*/trainer_state.json")),
        key=lambda path: int(path.name.partition("-")[2]),
    )
    resumes = bool(whole) and not sonde.is_replay()
    trainer.train(resume_from_checkpoint=str(whole[-1]) if resumes else None)
    return model


def lightning(run: Path) -> nn.Module:
    import lightning.pytorch as pl

    import sonde
    from sonde.integrations.lightning import SondeCallback

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.inner(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    pl.seed_everything(7)
    module = Module()
    keeps = pl.callbacks.ModelCheckpoint(
        f"{run}-out", every_n_train_steps=SAVE_EVERY, save_top_k=-1, filename="{step}"
    )
    trainer = pl.Trainer(
        max_steps=NUM_STEPS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SondeCallback(run), keeps],
    )
    loader = DataLoader(
        Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(5)
    )  # it has a generator of its own
    newest = None if sonde.is_replay() else _newest_that_loads(Path(f"{run}-out"))
    trainer.fit(module, loader, ckpt_path=newest)
    return module


def _newest_that_loads(folder: Path) -> str | None:
    paths = sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    for path in reversed(paths):
        if zipfile.is_zipfile(path):  # not cut short by a kill
            return str(path)
    return None


HOSTS: dict[str, Callable[[Path], nn.Module]] = {
    "own loop": own_loop,
    "Hugging Face": huggingface,
    "Lightning": lightning,
}


def main(host: str, run: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = HOSTS[host](run)
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().numpy().tobytes())
    Path(f"{run}.done").write_text(digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
