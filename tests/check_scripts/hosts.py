"""The same small language model in a Hugging Face Trainer or in Lightning, for tests of `sonde
check`: python hosts.py RUN --host HOST [--bug NAME]. Without a bug it is right.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

parser = argparse.ArgumentParser()
parser.add_argument("run", type=Path)
parser.add_argument("--host", choices=("huggingface", "lightning"), required=True)
parser.add_argument("--bug", choices=("none", "shifted_twice", "sees_future"), default="none")
args = parser.parse_args()
torch.manual_seed(1)
torch.set_num_threads(1)
VOCABULARY = 37


def rows() -> list[dict[str, Tensor]]:
    """Return rows of tokens with their labels."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(96):
        tokens = torch.randint(0, VOCABULARY, (17,), generator=generator)
        shift = 1 if args.bug == "shifted_twice" else 0
        found.append({"input_ids": tokens[:16], "labels": tokens[shift : 16 + shift]})
    return found


class Mixer(nn.Module):
    """Gives each position the mean of what it may see."""

    def forward(self, x: Tensor) -> Tensor:
        """Return means over positions."""
        if args.bug == "sees_future":
            return x.mean(1, keepdim=True).expand_as(x)
        count = torch.arange(1, x.shape[1] + 1).unsqueeze(-1)
        return x.cumsum(1) / count


class Model(nn.Module):
    """Predicts the next token, and shifts the labels itself, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.mixer = Mixer()
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the scores."""
        x = self.embedding(input_ids)
        scores = self.head(torch.cat([x, self.mixer(x)], -1))
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": scores}


def train_with_huggingface() -> None:
    """Train with a Trainer."""
    from transformers import Trainer, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    settings = TrainingArguments(
        str(args.run) + "-out",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        use_cpu=True,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    )
    data: Any = rows()
    Trainer(Model(), settings, train_dataset=data, callbacks=[SondeCallback(args.run)]).train()


def train_with_lightning() -> None:
    """Train with Lightning."""
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader

    from sonde.integrations.lightning import SondeCallback

    # lightning is Any to the type checker
    class Module(LightningModule):  # type: ignore[misc]
        """The model in Lightning's clothes."""

        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            """Return the loss of a batch."""
            loss: Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return AdamW."""
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data: Any = rows()
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, shuffle=True)
    Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[SondeCallback(args.run)],
    ).fit(Module(), loader)


if args.host == "huggingface":
    train_with_huggingface()
else:
    train_with_lightning()
