"""What the loops of the third set share: most are written out in the case itself, as scripts are.

`PLANTED` is false if FIELD_WITHOUT_FAULT is set: then every case trains as it should, which is how
one sees that its failure is what was planted and nothing else.
"""

import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from benchmarks.field_cases.declaration import Job
from benchmarks.field_cases.hosts import stop_at
from benchmarks.field_cases.loops import KILLED
from torch import Tensor, nn

import sonde

PLANTED: Final = "FIELD_WITHOUT_FAULT" not in os.environ
"""Whether the failures are there."""


def seed(number: int) -> None:
    """The first line of a script."""
    random.seed(number)
    torch.manual_seed(number)


def tell(step: int, loss: Any, every: int = 10) -> None:
    """Print the loss now and then, as a progress bar does."""
    if step % every == 0 or step < 4:
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        print(f"[{step:4d}] loss {value:.5f}", flush=True)


def fit(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], Tensor],
    draw: Callable[[int], Any],
    steps: int,
    **named: Any,
) -> None:
    """The shortest loop: what a step draws, its loss, backward, step; `named` is told sonde."""
    scheduler = named.get("scheduler")
    with sonde.Recorder(job.run, model, optimizer, **named) as recorder:

        def train_step(batch: Any) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            return loss.detach()

        for step in range(1, steps + 1):
            tell(step, recorder.step(train_step, draw(step)))


class Keeper:
    """The checkpoints of a script: writes one, is killed later, and goes on from it."""

    def __init__(
        self, job: Job, parts: dict[str, Any], *, saved: int = 80, killed: int = 95, last: int = 150
    ) -> None:
        self.job = job
        self.parts = parts
        self.saved = saved
        self.killed = killed
        self.last = last

    @property
    def path(self) -> Any:
        """The file of the checkpoint."""
        return self.job.checkpoints / "last.ckpt"

    def state(self, step: int) -> dict[str, Any]:
        """A complete checkpoint."""
        whole = {name: part.state_dict() for name, part in self.parts.items()}
        return {**whole, "step": step, "torch_rng": torch.get_rng_state()}

    def load(self, state: dict[str, Any], *left_out: str) -> int:
        """Load all but what is left out; return the step."""
        for name, part in self.parts.items():
            if name not in left_out:
                part.load_state_dict(state[name])
        if "torch_rng" not in left_out:
            torch.set_rng_state(state["torch_rng"])
        return int(state["step"])

    def steps(
        self,
        recorder: sonde.Recorder,
        load: Callable[[dict[str, Any]], int] | None = None,
        save: Callable[[int], dict[str, Any]] | None = None,
    ) -> Iterator[int]:
        """Yield the steps of this process; write the checkpoint, or begin from it."""
        start = 0
        if self.job.part == 2 and not sonde.is_replay():
            state = torch.load(self.path, weights_only=True)
            start = self.load(state) if load is None else load(state)
            recorder.num_updates = start
        end = self.killed if self.job.part == 1 else self.last
        for step in range(start + 1, end + 1):
            yield step
            if self.job.part == 1 and step == self.saved:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                torch.save(self.state(step) if save is None else save(step), self.path)
        recorder.close()


def trainer_settings(job: Job, **changes: Any) -> Any:
    """The arguments of a small training with Hugging Face's Trainer."""
    from transformers import TrainingArguments

    settings: dict[str, Any] = {
        "learning_rate": 3e-3,
        "max_steps": 150,
        "per_device_train_batch_size": 8,
        "use_cpu": True,
        "save_steps": 50,
        "logging_steps": 10,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
        "remove_unused_columns": False,
        **changes,
    }
    return TrainingArguments(str(job.checkpoints), **settings)


def trainer(
    job: Job, kind: Any, model: Any, rows: Any, collator: Any, *more: Any, **changes: Any
) -> Any:
    """A Trainer of a kind of one's own, with the callback after those in `more`.

    `changes` are settings, and perhaps an `eval_dataset`.
    """
    from sonde.integrations.huggingface import SondeCallback

    callbacks = list(more)
    evaluated = changes.pop("eval_dataset", None)
    if job.part == 1 and job.run.name.startswith("resume"):
        callbacks.append(stop_at(KILLED))
    return kind(
        model,
        trainer_settings(job, **changes),
        train_dataset=rows,
        eval_dataset=evaluated,
        data_collator=collator,
        callbacks=[*callbacks, SondeCallback(job.run)],
    )
