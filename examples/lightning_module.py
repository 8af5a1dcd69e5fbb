"""A Lightning module that sonde watches: a small language model on a small corpus, one record of
which is garbled.

    python examples/lightning_module.py
    sonde spikes runs/lightning
    sonde diagnose runs/lightning -- python examples/lightning_module.py
    sonde rollback runs/lightning --step N --apply
    python examples/lightning_module.py --resume runs/lightning-out/N.ckpt

What sonde adds to the script is one line: the callback.
"""

import argparse
import logging
from typing import Any

import torch
import torch.nn.functional as F
from corpus import sentences
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sonde.integrations.lightning import SondeCallback


class LanguageModel(LightningModule):
    """Predicts the next byte."""

    def __init__(self, *, manual: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        self.embedding = nn.Embedding(256, 32)
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(64, 256)

    def training_step(self, batch: Tensor) -> Tensor:
        """The loss of one batch."""
        hidden, _ = self.recurrent(self.embedding(batch[:, :-1]))
        logits = self.head(self.dropout(hidden))
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0)
        self.log("loss", loss)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def collate(rows: list[bytes]) -> Tensor:
    """Rows of bytes, padded with 0."""
    return nn.utils.rnn.pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True)


def decode(tokens: list[int]) -> str:
    """Bytes as text."""
    return bytes(tokens).decode(errors="replace")


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", default="runs/lightning")
    parser.add_argument("--resume", default=None)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--manual", action="store_true")
    parser.add_argument("--unwatched", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig()
    seed_everything(1)
    rows: Any = [text.encode() for text in sentences()]
    loader: DataLoader[Any] = DataLoader(
        rows,
        batch_size=arguments.rows,
        shuffle=True,
        collate_fn=collate,
        num_workers=arguments.workers,
    )
    module = LanguageModel(manual=arguments.manual)
    checkpoints = ModelCheckpoint(
        f"{arguments.directory}-out", filename="{step}", every_n_train_steps=25, save_top_k=-1
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy="ddp" if arguments.devices > 1 else "auto",
        max_epochs=4,
        precision=arguments.precision,
        accumulate_grad_batches=arguments.accumulate,
        gradient_clip_val=None if arguments.manual else 1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            checkpoints,
            *([] if arguments.unwatched else [SondeCallback(arguments.directory, decode=decode)]),
        ],
    )
    trainer.fit(module, loader, ckpt_path=arguments.resume)
    if trainer.is_global_zero:
        torch.save(module.state_dict(), f"{arguments.directory}.pt")


if __name__ == "__main__":
    main()
