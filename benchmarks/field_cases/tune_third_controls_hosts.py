"""Trainings with which nothing is wrong, to tune on, of the third set: in frameworks."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.hosts import lightning
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    PAD,
    Pieces,
    glyphs,
    graphs,
    padded,
    recipes,
)
from benchmarks.field_cases.third_loops import seed, tell, trainer
from benchmarks.field_cases.third_models import GraphNet, PatchNet
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import sonde


def lightning_accumulates_more_and_more(job: Job) -> None:
    """`GradientAccumulationScheduler`: one batch an update, two from the second epoch on, four from
    the third on, as planned.
    """
    from lightning.pytorch import LightningModule
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    class Classifier(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = PatchNet(dropout=0.1)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            tell(batch_idx, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=2e-3)

    seed(171)
    pictures, labels = glyphs(1280)
    plan = GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})
    host = lightning(job, steps=150, callbacks=(plan,), gradient_clip_val=1.0)
    host.fit(Classifier(), DataLoader(TensorDataset(pictures, labels), 16, shuffle=True))


def resume_lightning_with_everything(job: Job) -> None:
    """`fit` with `ckpt_path`: weights, moments, a schedule by epochs, the place in the epoch."""
    from lightning.pytorch import LightningModule

    class Regression(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = GraphNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.huber_loss(self.net(batch[0], batch[1]), batch[2])
            tell(batch_idx, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.RMSprop(self.parameters(), lr=2e-3)
            falls = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            return {"optimizer": optimizer, "lr_scheduler": falls}

    seed(172)
    whole = [graphs(step, 24) for step in range(1, 41)]
    rows = TensorDataset(*(torch.cat(parts) for parts in zip(*whole, strict=True)))
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    host = lightning(job, steps=170)
    host.fit(Regression(), DataLoader(rows, 24, shuffle=True), ckpt_path=path)


def huggingface_classes_with_weights(job: Job) -> None:
    """A `compute_loss` of one's own: classes with weights and label smoothing, and a small BERT."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer

    class Weighted(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
        ) -> Any:
            labels = inputs["labels"]
            out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            weights = torch.tensor([1.0, 3.0])
            loss = F.cross_entropy(out.logits, labels, weight=weights, label_smoothing=0.05)
            return (loss, out) if return_outputs else loss

    seed(173)
    texts = recipes(1200)
    pieces = Pieces(texts)
    rows = [
        {"input_ids": pieces.encode(text)[:48], "labels": int("low heat" in text or "hour" in text)}
        for text in texts
    ]

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = padded([row["input_ids"] for row in found])
        labels = torch.tensor([row["labels"] for row in found])
        return {
            "input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels
        }  # fmt: skip

    settings = BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    host = trainer(
        job, Weighted, BertForSequenceClassification(settings), rows, collate,
        max_steps=150, per_device_train_batch_size=16, lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
    )  # fmt: skip
    host.train()


CASES = (
    control(lightning_accumulates_more_and_more, host="lightning"),
    control(resume_lightning_with_everything, host="lightning"),
    control(huggingface_classes_with_weights, host="huggingface"),
)

if __name__ == "__main__":
    main(CASES)
