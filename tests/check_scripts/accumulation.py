"""Updates of two micro-batches, in every way to make them, for tests of `sonde check`: python
accumulation.py RUN --way WAY [--bug NAME]. Without a bug it is right.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WAYS = ("last", "without_last", "inside", "lightning", "by_hand", "huggingface", "accelerate")
BUGS = ("none", "undivided", "divided_twice", "cleared", "mean_of_means", "gradients_divided")
parser = argparse.ArgumentParser()
parser.add_argument("run", type=Path)
parser.add_argument("--way", choices=WAYS, required=True)
parser.add_argument("--bug", choices=BUGS, default="none")
args = parser.parse_args()
way: str = args.way
bug: str = args.bug
torch.manual_seed(1)
torch.set_num_threads(1)
VOCABULARY = 29
ROWS = 4
LENGTH = 12
NUM_MICRO = 2
DIVISOR = {"undivided": 1, "divided_twice": NUM_MICRO**2, "gradients_divided": 1}.get(
    bug, NUM_MICRO
)
"""What the script itself divides the loss by, if nothing does it in its place."""


def batch_of(number: int) -> dict[str, Tensor]:
    """Return rows of tokens; with unequal micro-batches, every other one has few labels."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=generator)
    labels = tokens.clone()
    if bug == "mean_of_means":
        labels[:, 3 if number % 2 else LENGTH :] = -100
    return {"input_ids": tokens, "labels": labels}


class Model(nn.Module):
    """Predicts the next token from the mean of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the mean loss."""
        x = self.embedding(input_ids).cumsum(1)
        scores = self.head(x)[:, :-1]
        return {"loss": F.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())}


def train_in_a_loop() -> None:
    """Train in a loop of one's own."""
    import sonde

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = sonde.Recorder(args.run, model, optimizer)
    calls = [0]

    def micro_step(batch: dict[str, Tensor]) -> Tensor:
        if bug == "cleared":
            optimizer.zero_grad()
        loss: Tensor = model(**batch)["loss"]
        (loss / DIVISOR).backward()
        return loss.detach()

    def update() -> None:
        if bug == "gradients_divided":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= NUM_MICRO
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    def step_with_last(batch: dict[str, Tensor], last: bool) -> Tensor:
        loss = micro_step(batch)
        if last:
            update()
        return loss

    def step_that_counts(batch: dict[str, Tensor]) -> Tensor:
        calls[0] += 1
        loss = micro_step(batch)
        if calls[0] % NUM_MICRO == 0:
            update()
        return loss

    def whole_step(batches: list[dict[str, Tensor]]) -> Tensor:
        losses = [micro_step(batch) for batch in batches]
        update()
        return torch.stack(losses).mean()

    for number in range(12 * NUM_MICRO):
        if way == "last":
            is_last = number % NUM_MICRO == NUM_MICRO - 1
            recorder.step(step_with_last, batch_of(number), last=is_last)
        elif way == "without_last":
            recorder.step(step_that_counts, batch_of(number))
        else:
            several = [batch_of(NUM_MICRO * number + micro) for micro in range(NUM_MICRO)]
            recorder.step(whole_step, several)
    recorder.close()


def train_with_accelerate() -> None:
    """Train with Accelerate, which divides the loss itself."""
    from accelerate import Accelerator

    import sonde

    accelerator = Accelerator(gradient_accumulation_steps=NUM_MICRO, cpu=True)
    plain = Model()
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    recorder = sonde.Recorder(args.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        with accelerator.accumulate(model):
            if bug == "cleared":
                plain.zero_grad()
            loss: Tensor = model(**batch)["loss"]
            accelerator.backward(loss * NUM_MICRO / DIVISOR)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    for number in range(12 * NUM_MICRO):
        recorder.step(train_step, batch_of(number))
    recorder.close()


def train_with_lightning() -> None:
    """Train with Lightning, which divides the loss itself unless it is done by hand."""
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader

    from sonde.integrations.lightning import SondeCallback

    # lightning is Any to the type checker
    class Module(LightningModule):  # type: ignore[misc]
        """The model in Lightning's clothes."""

        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.automatic_optimization = way == "lightning"

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            """Return the loss of a batch, or make the update."""
            if bug == "cleared":
                self.model.zero_grad()
            loss: Tensor = self.model(**batch)["loss"]
            if self.automatic_optimization:
                return loss * NUM_MICRO / DIVISOR
            self.manual_backward(loss / DIVISOR)
            if batch_idx % NUM_MICRO == NUM_MICRO - 1:
                optimizer = self.optimizers()
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return AdamW."""
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data: Any = [batch_of(number) for number in range(24)]
    loader: DataLoader[Any] = DataLoader(data, batch_size=None)
    Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=NUM_MICRO if way == "lightning" else 1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[SondeCallback(args.run)],
    ).fit(Module(), loader)


def train_with_huggingface() -> None:
    """Train with a Trainer, which divides the loss itself."""
    from transformers import Trainer, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    # transformers is Any to the type checker
    class OwnTrainer(Trainer):  # type: ignore[misc]
        """A Trainer with a loss of its own."""

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> Any:
            """Return the loss of a micro-batch."""
            del return_outputs
            if bug == "cleared":
                model.zero_grad()
            return model(**inputs)["loss"] * NUM_MICRO / DIVISOR

    settings = TrainingArguments(
        str(args.run) + "-out",
        max_steps=12,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=NUM_MICRO,
        train_sampling_strategy="sequential",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data: Any = []
    for number in range(24):
        inputs, labels = batch_of(number).values()
        for row in range(ROWS):
            data.append({"input_ids": inputs[row], "labels": labels[row]})
    OwnTrainer(Model(), settings, train_dataset=data, callbacks=[SondeCallback(args.run)]).train()


if way in ("lightning", "by_hand"):
    train_with_lightning()
elif way == "huggingface":
    train_with_huggingface()
elif way == "accelerate":
    train_with_accelerate()
else:
    train_in_a_loop()
