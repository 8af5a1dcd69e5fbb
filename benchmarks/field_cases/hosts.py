"""Small trainings in Hugging Face's Trainer and in Lightning, watched by sonde's callbacks.

The frameworks are imported when a training is made: a file of cases can be read without them.
"""

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.field_cases.declaration import Job
from benchmarks.field_cases.loops import KILLED, seed_all
from benchmarks.field_cases.texts import CHARACTERS, END, NUM_CHARACTERS, PAD, encode, sentences
from torch import Tensor, nn
from torch.utils.data import DataLoader

import sonde


def character_tokenizer() -> Any:
    """A tokenizer of Hugging Face's with the characters of our texts."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    names = dict.fromkeys(CHARACTERS, 0)
    for number, character in enumerate(CHARACTERS):
        names[character] = number
    tokenizer = Tokenizer(models.BPE(names, []))
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": CHARACTERS[PAD], "eos_token": CHARACTERS[END]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def llama(**changes: Any) -> Any:
    """A Llama of one layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": NUM_CHARACTERS,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "attention_dropout": 0.1,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": END,
    }
    settings.update(changes)
    return LlamaForCausalLM(LlamaConfig(**settings))


def token_rows(num: int = 640, seed: int = 1) -> list[dict[str, Any]]:
    """A sentence each, as `Dataset.map(tokenizer)` gives them."""
    return [{"input_ids": [*encode(text), END]} for text in sentences(num, seed)]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad; labels are the inputs, and padding does not count. The model shifts them itself."""
    length = max(len(row["input_ids"]) for row in rows)
    tokens = torch.full((len(rows), length), PAD)
    labels = torch.full((len(rows), length), -100)
    for number, row in enumerate(rows):
        size = len(row["input_ids"])
        tokens[number, :size] = torch.tensor(row["input_ids"])
        labels[number, :size] = torch.tensor(row.get("labels", row["input_ids"]))
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": labels}


def stop_at(step: int) -> Any:
    """A callback that ends the training at a step, as a queue's time limit does."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            if state.global_step >= step:
                control.should_training_stop = True

    return Stop()


def at_step(step: int, act: Callable[[Any], None]) -> Any:
    """A callback that does something to the model after a step."""
    from transformers import TrainerCallback

    class Act(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            if state.global_step == step:
                act(kwargs["model"])

    return Act()


def huggingface(
    job: Job,
    *,
    model: Any = None,
    rows: Any = None,
    collator: Any = collate,
    callbacks: tuple[Any, ...] = (),
    others: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """A Trainer with the callback; `arguments` go to TrainingArguments, `others` to the Trainer."""
    from transformers import Trainer, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    if model is None:
        seed_all()
        model = llama()
    settings: dict[str, Any] = {
        "learning_rate": 5e-3,
        "max_steps": 160,
        "warmup_steps": 10,
        "per_device_train_batch_size": 8,
        "use_cpu": True,
        "save_steps": 50,
        "logging_steps": 20,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 1,
        "remove_unused_columns": False,
    }
    settings.update(arguments)
    if job.part == 1 and job.run.name.startswith("resume"):
        callbacks = (*callbacks, stop_at(KILLED))
    return Trainer(
        model,
        TrainingArguments(str(job.checkpoints), **settings),
        train_dataset=token_rows() if rows is None else rows,
        data_collator=collator,
        processing_class=character_tokenizer(),
        callbacks=[*callbacks, SondeCallback(job.run)],
        **(others or {}),
    )


def resume_huggingface(job: Job, trainer: Any, spoil: Callable[[Any], None] | None = None) -> None:
    """Train to the kill; as part 2, spoil the checkpoint as somebody did, and go on from it."""
    checkpoint = job.checkpoints / "checkpoint-100"
    if job.part == 1 or sonde.is_replay():
        trainer.train()
        return
    if spoil is not None:
        spoil(checkpoint)
    trainer.train(resume_from_checkpoint=str(checkpoint))


def lightning_module(
    model: nn.Module,
    loss_of: Callable[[nn.Module, Any], Tensor],
    lr: float = 3e-3,
    optimizers: Callable[[nn.Module], Any] | None = None,
    *,
    manual: Callable[[Any, Any], Tensor] | None = None,
) -> Any:
    """A LightningModule around a model; `manual(module, batch)` optimises by hand."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.automatic_optimization = manual is None

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = loss_of(self.model, batch) if manual is None else manual(self, batch)
            if (batch_idx + 1) % 20 == 0:
                print(f"batch {batch_idx + 1}: loss {float(loss.detach()):.4f}", flush=True)
            return loss

        def configure_optimizers(self) -> Any:
            if optimizers is not None:
                return optimizers(self.model)
            return torch.optim.AdamW(self.model.parameters(), lr=lr)

    return Module()


def lightning(
    job: Job,
    *,
    steps: int = 160,
    decode: Any = None,
    callbacks: tuple[Any, ...] = (),
    **settings: Any,
) -> Any:
    """A Trainer of Lightning with the callback; it saves every 50 steps."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from sonde.integrations.lightning import SondeCallback

    if job.part == 1 and job.run.name.startswith("resume"):
        steps = KILLED
    saver = ModelCheckpoint(
        str(job.checkpoints), filename="{step}", every_n_train_steps=50, save_top_k=-1
    )
    return Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saver, *callbacks, SondeCallback(job.run, decode=decode)],
        **settings,
    )


def loader(rows: Any, size: int | None = 16, *, shuffle: bool = True, **settings: Any) -> Any:
    """A DataLoader over rows; with no size, the rows are batches already."""
    return DataLoader(rows, batch_size=size, shuffle=shuffle, **settings)
