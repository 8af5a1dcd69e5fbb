"""What the loops of the fourth set share; the rest is written out in each case, as scripts are.

`PLANTED` is false if FIELD_WITHOUT_FAULT is set: then every case trains as it should, which is how
one sees that its failure is what was planted and nothing else.
"""

import math
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from benchmarks.field_cases.declaration import Job
from benchmarks.field_cases.fourth_data import (
    END,
    PAD,
    encode,
    stream,
    tokenizer,
    translations,
    windows,
)
from benchmarks.field_cases.hosts import stop_at
from benchmarks.field_cases.loops import KILLED
from torch import Tensor, nn

import sonde

PLANTED: Final = "FIELD_WITHOUT_FAULT" not in os.environ
"""Whether the failures are there."""


def set_seed(number: int) -> None:
    """The first line of a script."""
    random.seed(number)
    torch.manual_seed(number)


def log(step: int, loss: Any, every: int = 10) -> None:
    """Print the loss now and then."""
    if step % every == 0 or step <= 2:
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        print(f"iter {step}: loss {value:.4f}", flush=True)


def nano(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    get_batch: Callable[[int], Tensor],
    steps: int,
    *,
    get_rate: Callable[[int], float] | None = None,
    **named: Any,
) -> None:
    """nanoGPT's loop without its extras: the model returns its loss, the rate is set by hand."""
    recorder = sonde.Recorder(job.run, model, optimizer, **named)

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for step in range(1, steps + 1):
        if get_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = get_rate(step)
        log(step, recorder.step(train_step, get_batch(step)))
    recorder.close()


def simple(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    criterion: Callable[[Any], Tensor],
    batches: Callable[[int], Any],
    steps: int,
    **named: Any,
) -> None:
    """The loop of the tutorials; `named` is told sonde."""
    recorder = sonde.Recorder(job.run, model, optimizer, **named)

    def train_step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(batch)
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, steps + 1):
        log(step, recorder.step(train_step, batches(step)))
    recorder.close()


def cosine(step: int, *, peak: float, warm: int, last: int, floor: float = 0.0) -> float:
    """A linear warm-up, then half a cosine."""
    if step <= warm:
        return peak * step / warm
    share = min(1.0, (step - warm) / (last - warm))
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * share))


class Saved:
    """Checkpoints as a script has them: written at a step, killed later, read at the start."""

    def __init__(self, job: Job, *, at: int = 80, killed: int = 92, last: int = 150) -> None:
        self.job = job
        self.at = at
        self.killed = killed
        self.last = last

    @property
    def path(self) -> Any:
        """The file."""
        return self.job.checkpoints / "ckpt.pt"

    @property
    def is_resumed(self) -> bool:
        """Whether this process goes on from the file."""
        return self.job.part == 2 and not sonde.is_replay()

    def read(self) -> dict[str, Any]:
        """What was written."""
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        return state

    def steps(self, first: int, state: Callable[[], dict[str, Any]]) -> Iterator[int]:
        """Yield the steps of this process, and write the file when it is time."""
        end = self.killed if self.job.part == 1 else self.last
        for step in range(first + 1, end + 1):
            yield step
            if self.job.part == 1 and step == self.at:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                torch.save({"iter_num": step, **state()}, self.path)


def fast_tokenizer() -> Any:
    """The tokenizer as Hugging Face's Trainer takes it."""
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **special)


def trainer_of(
    job: Job,
    model: Any,
    rows: Any,
    collator: Any,
    *callbacks: Any,
    kind: Any = None,
    **changes: Any,
) -> Any:
    """A Trainer, or one of another kind, with the callback after those given.

    `changes` are settings, and perhaps an `eval_dataset` or `optimizers`.
    """
    from transformers import Trainer, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    others = {name: changes.pop(name) for name in ("eval_dataset", "optimizers") if name in changes}
    settings: dict[str, Any] = {
        "learning_rate": 3e-3,
        "max_steps": 150,
        "per_device_train_batch_size": 8,
        "warmup_steps": 10,
        "use_cpu": True,
        "save_steps": 50,
        "logging_steps": 10,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 11,
        "remove_unused_columns": False,
        **changes,
    }
    made = TrainingArguments(str(job.checkpoints), **settings)
    given = list(callbacks)
    if job.part == 1 and job.run.name.startswith("resume"):
        given.append(stop_at(KILLED))
    return (kind or Trainer)(
        model,
        made,
        train_dataset=rows,
        data_collator=collator,
        processing_class=fast_tokenizer(),
        callbacks=[*given, SondeCallback(job.run)],
        **others,
    )


def pretrained(model: Any, steps: int = 60) -> Any:
    """A model of Hugging Face's that has read before it is tuned; nobody records that."""
    numbers = stream().tolist()
    for _, german in translations(600, 48):
        numbers += [*encode(german), END]
    data = torch.tensor(numbers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.0)
    for step in range(1, steps + 1):
        rows = windows(data, step, 12, 33)
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def causal_rows(texts: list[list[int]]) -> list[dict[str, Any]]:
    """Texts as rows of a dataset, an end after each."""
    return [{"input_ids": [*numbers, END]} for numbers in texts]


def causal_batch(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad on the right; labels are the inputs or those of the row, and padding does not count."""
    length = max(len(row["input_ids"]) for row in rows)
    tokens = torch.full((len(rows), length), PAD)
    labels = torch.full((len(rows), length), -100)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for number, row in enumerate(rows):
        size = len(row["input_ids"])
        tokens[number, :size] = torch.tensor(row["input_ids"])
        labels[number, :size] = torch.tensor(row.get("labels", row["input_ids"]))
        mask[number, :size] = 1
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}
