"""Loops that belong to a host: sonde rides along as its callback."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from loops.context import NUM_STEPS, Context, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

HOSTS: dict[str, Callable[[Context], None]] = {}


class Rows(Dataset[Any]):
    """Rows of eight numbers; one batch of them is large where an event is planted."""

    def __init__(self, context: Context) -> None:
        generator = torch.Generator().manual_seed(4)
        self.rows = torch.randn(NUM_STEPS * 4, 8, generator=generator)
        for step in range(1, NUM_STEPS + 1):
            self.rows[4 * step - 4 : 4 * step] *= context.scale(step)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"x": self.rows[number]}


class Stream(IterableDataset[Any]):
    """The same rows, one after another: they have no numbers, and no end that is known."""

    def __init__(self, context: Context) -> None:
        self._rows = Rows(context)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = torch.utils.data.get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, len(self._rows), stride):
            yield self._rows[number]


class WithoutLength(Dataset[Any]):
    """The same rows, of which nobody knows how many there are."""

    def __init__(self, context: Context) -> None:
        self._rows = Rows(context)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self._rows[number]


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.inner(x).square().mean()}


def huggingface(
    context: Context,
    rows: Any = None,
    *,
    collate: Any = None,
    **arguments: Any,
) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(7)
    model = WithLoss()
    context.hashed.append(model)
    callbacks = []
    if context.is_watched:
        from sonde.integrations.huggingface import SondeCallback

        callbacks.append(SondeCallback(context.folder / "run"))
    settings = TrainingArguments(
        output_dir=str(context.folder / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=1,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=10,
        **arguments,
    )
    dataset = Rows(context) if rows is None else rows
    Trainer(
        model=model,
        args=settings,
        train_dataset=dataset,
        data_collator=collate,
        callbacks=callbacks,
    ).train()


HOSTS["Hugging Face"] = huggingface


def collated(context: Context, collate: Any, take: Any) -> None:
    """Train with a collator of one's own; `take` takes the inputs from what it makes."""
    from transformers import Trainer

    def compute_loss(self: Any, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return model(take(inputs))["loss"]

    before = Trainer.compute_loss
    Trainer.compute_loss = compute_loss
    try:
        huggingface(context, collate=collate, remove_unused_columns=False)
    finally:
        Trainer.compute_loss = before


def encodings(context: Context) -> None:
    from transformers import BatchEncoding

    def collate(rows: list[dict[str, Tensor]]) -> Any:
        return BatchEncoding({"x": torch.stack([row["x"] for row in rows])})

    collated(context, collate, lambda batch: batch.to("cpu").x)


HOSTS["Hugging Face, a collator of BatchEncoding"] = encodings


def tuples(context: Context) -> None:
    def collate(rows: list[dict[str, Tensor]]) -> Any:
        return (torch.stack([row["x"] for row in rows]),)

    collated(context, collate, lambda batch: batch[0])


HOSTS["Hugging Face, a collator of tuples"] = tuples


def accumulated(context: Context) -> None:
    huggingface(context, gradient_accumulation_steps=2)
    context.num_updates = NUM_STEPS // 2


HOSTS["Hugging Face, two micro-batches"] = accumulated


def streamed(context: Context) -> None:
    huggingface(context, Stream(context), max_steps=NUM_STEPS, dataloader_num_workers=2)


HOSTS["Hugging Face, a stream"] = streamed


def lightning(
    context: Context, loader: Any = None, *, manual: bool = False, **arguments: Any
) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.automatic_optimization = not manual

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.inner(batch["x"]).square().mean()
            if not manual:
                return loss
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return None

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    callbacks = []
    if context.is_watched:
        from sonde.integrations.lightning import SondeCallback

        callbacks.append(SondeCallback(context.folder / "run"))
    module = Module()
    context.hashed.append(module)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **arguments,
    )
    if loader is None:
        loader = DataLoader(Rows(context), 4, shuffle=True)
    trainer.fit(module, loader)


HOSTS["Lightning"] = lightning
HOSTS["Lightning, manual optimization"] = lambda context: lightning(context, manual=True)
HOSTS["Lightning, clipped"] = lambda context: lightning(context, gradient_clip_val=0.5)


def lightning_accumulated(context: Context) -> None:
    lightning(context, accumulate_grad_batches=2)
    context.num_updates = NUM_STEPS // 2


HOSTS["Lightning, two micro-batches"] = lightning_accumulated


def lightning_stream(context: Context) -> None:
    lightning(context, DataLoader(Stream(context), 4, num_workers=2))


HOSTS["Lightning, a stream"] = lightning_stream


def lightning_own_batches(context: Context) -> None:
    numbers = torch.randperm(4 * NUM_STEPS, generator=torch.Generator().manual_seed(5)).tolist()
    batches = [numbers[first : first + 4] for first in range(0, len(numbers), 4)]
    lightning(context, DataLoader(WithoutLength(context), batch_sampler=batches))


HOSTS["Lightning, batches of one's own"] = lightning_own_batches


class Batches:
    """Batches that no loader of torch makes."""

    def __init__(self, context: Context) -> None:
        rows = Rows(context).rows
        self._batches = [{"x": rows[first : first + 4]} for first in range(0, len(rows), 4)]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self._batches)


HOSTS["Lightning, batches without a loader"] = lambda context: lightning(context, Batches(context))


def accelerate(context: Context) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Rows(context), 4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    recorder = context.record(model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> None:
        loss = recorder.loss(model(batch["x"]).square().mean())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for batch in loader:
        recorder.step(train_step, batch)


HOSTS["Accelerate"] = accelerate
