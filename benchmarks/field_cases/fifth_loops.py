"""What the loops of the fifth set share; the rest is written out in each case, as scripts are.

`PLANTED` is false if FIELD_WITHOUT_FAULT is set: then every case trains as it should.
"""

import math
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from benchmarks.field_cases.declaration import Job
from benchmarks.field_cases.fifth_data import (
    CLOSE,
    END,
    PAD,
    chatml,
    chats,
    chunk,
    corpus,
    pad,
    tokenizer,
)
from benchmarks.field_cases.hosts import stop_at
from benchmarks.field_cases.loops import KILLED
from torch import Tensor, nn

import sonde

PLANTED: Final = "FIELD_WITHOUT_FAULT" not in os.environ
"""Whether the failures are there."""


def begin(seed: int) -> None:
    """Set the generators."""
    random.seed(seed)
    torch.manual_seed(seed)


def tell(step: int, loss: Any, every: int = 10) -> None:
    """Print the loss now and then."""
    if step % every == 0 or step <= 2:
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        print(f"step {step} | loss {value:.4f}", flush=True)


def loop(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], Tensor],
    batch_of: Callable[[int], Any],
    steps: int,
    *,
    rate: Callable[[int], float] | None = None,
    **named: Any,
) -> None:
    """The shortest loop: a step function, and `recorder.step` around it."""
    recorder = sonde.Recorder(job.run, model, optimizer, **named)

    def train_step(batch: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    for step in range(1, steps + 1):
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
        tell(step, recorder.step(train_step, batch_of(step)))
    recorder.close()


def warm_cosine(step: int, peak: float, warm: int, last: int, floor: float = 0.1) -> float:
    """A rate that warms up and falls as a cosine."""
    if step <= warm:
        return peak * step / warm
    share = min(1.0, (step - warm) / (last - warm))
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * share)))


class Lion(torch.optim.Optimizer):
    """The sign of a mean of gradients, as the paper has it in ten lines."""

    def __init__(self, parameters: Any, lr: float = 3e-4, decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            first, second = group["betas"]
            for part in group["params"]:
                if part.grad is None:
                    continue
                state = self.state[part]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(part)
                way = torch.lerp(part.grad, state["mean"], first).sign()
                part.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * way)
                state["mean"].lerp_(part.grad, 1 - second)


class File:
    """The checkpoint of a script: written at a step, before the process is killed at another."""

    def __init__(self, job: Job, *, at: int = 90, killed: int = 105, last: int = 160) -> None:
        self.job = job
        self.at = at
        self.killed = killed
        self.last = last

    def path(self, name: str = "last.pt") -> Any:
        """A file of the script's."""
        self.job.checkpoints.mkdir(parents=True, exist_ok=True)
        return self.job.checkpoints / name

    @property
    def goes_on(self) -> bool:
        """Whether this process begins with the file."""
        return self.job.part == 2 and not sonde.is_replay()

    def load(self, name: str = "last.pt") -> dict[str, Any]:
        """What was written."""
        found: dict[str, Any] = torch.load(self.path(name), weights_only=True)
        return found

    def steps(self, first: int, state: Callable[[], dict[str, Any]]) -> Iterator[int]:
        """Yield the steps of this process, and write the file when it is time."""
        for step in range(first + 1, (self.killed if self.job.part == 1 else self.last) + 1):
            yield step
            if self.job.part == 1 and step == self.at:
                torch.save({"step": step, **state()}, self.path())


def states(**parts: Any) -> dict[str, Any]:
    """The states of these parts and of torch's generator."""
    found = {name: part.state_dict() for name, part in parts.items()}
    return {**found, "rng": torch.get_rng_state()}


def take(state: dict[str, Any], **parts: Any) -> int:
    """Load what `states` gave; return the step."""
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["rng"])
    return int(state["step"])


def tokenizer_of_hub() -> Any:
    """The tokenizer as Hugging Face's Trainer takes it."""
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **special)


def hub(
    job: Job,
    model: Any,
    rows: Any,
    collator: Any,
    *callbacks: Any,
    kind: Any = None,
    **changes: Any,
) -> Any:
    """A Trainer, or one of another kind; `changes` are settings, `eval_dataset`, `optimizers`."""
    from transformers import Trainer, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    others = {name: changes.pop(name) for name in ("eval_dataset", "optimizers") if name in changes}
    settings: dict[str, Any] = {
        "learning_rate": 4e-3,
        "max_steps": 150,
        "per_device_train_batch_size": 8,
        "warmup_steps": 8,
        "use_cpu": True,
        "save_steps": 50,
        "logging_steps": 10,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 5,
        "remove_unused_columns": False,
        **changes,
    }
    given = list(callbacks)
    if job.part == 1 and job.run.name.startswith("resume"):
        given.append(stop_at(KILLED))
    return (kind or Trainer)(
        model,
        TrainingArguments(str(job.checkpoints), **settings),
        train_dataset=rows,
        data_collator=collator,
        processing_class=tokenizer_of_hub(),
        callbacks=[*given, SondeCallback(job.run)],
        **others,
    )


def resume_hub(job: Job, trainer: Any, spoil: Callable[[Any], None]) -> None:
    """Train to the kill; as part 2 do to the checkpoint what somebody did, and go on from it."""
    if job.part == 1 or sonde.is_replay():
        trainer.train()
        return
    checkpoint = job.checkpoints / "checkpoint-100"
    if PLANTED:
        spoil(checkpoint)
    trainer.train(resume_from_checkpoint=str(checkpoint))


def text_rows(texts: list[list[int]]) -> list[dict[str, Any]]:
    """Texts as rows of a dataset, an end after each."""
    return [{"input_ids": [*numbers, END]} for numbers in texts]


def chat_rows(num: int, seed: int = 73) -> list[dict[str, Any]]:
    """Conversations as rows; only the answer and its close count."""
    rows: list[dict[str, Any]] = []
    for asked, told in chats(num, seed):
        numbers, first = chatml(asked, told)
        rows.append({"input_ids": numbers, "labels": [-100] * first + numbers[first:]})
    assert rows[0]["labels"][-1] == CLOSE
    return rows


def text_batch(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad on the right; labels are the inputs or the row's own, and padding does not count."""
    given = [list(row["input_ids"]) for row in rows]
    labels = [list(row.get("labels", row["input_ids"])) for row in rows]
    tokens = pad(given)
    lengths = torch.tensor(list(map(len, given))).unsqueeze(1)
    mask = (torch.arange(tokens.shape[1]) < lengths).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": pad(labels, -100)}


def tensor_batch(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Rows of numbers, one above the other."""
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}


def read_before(model: Any, steps: int = 60, rate: float = 8e-3) -> Any:
    """A language model of Hugging Face's that has read before it is tuned; nobody records that."""
    talk = [number for asked, told in chats(200, 70) for number in chatml(asked, told)[0]]
    data = torch.cat((corpus(1000), torch.tensor(talk)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for step in range(1, steps + 1):
        rows = chunk(data, step, 12, 33, seed=7)
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def padding_aside(tokens: Tensor) -> Tensor:
    """Labels of the next token: padding does not count."""
    labels = tokens[:, 1:].clone()
    return labels.masked_fill(labels == PAD, -100)
