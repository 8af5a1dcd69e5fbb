"""Training loops as people write them, with the recorder as docs/any-loop.md has it.

`train` is the usual loop. A case whose fault lies in the step writes its own step function and
hands it to `follow`. `resume_training` saves at step 100, is killed at step 120, and goes on.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job
from benchmarks.field_cases.models import GPT
from benchmarks.field_cases.texts import PAD, batch_at, blocks, decode
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import sonde

SAVED: Final = 100
KILLED: Final = 120
LAST: Final = 180


def seed_all(seed: int = 1) -> None:
    """Set the generators, as the first line of a script does."""
    random.seed(seed)
    torch.manual_seed(seed)


def gpt(seed: int = 1, **changes: Any) -> GPT:
    """A new GPT."""
    seed_all(seed)
    return GPT(**changes)


def adamw(model: nn.Module, lr: float = 3e-3, **changes: Any) -> torch.optim.Optimizer:
    """The usual optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=lr, **changes)


def warm_up(optimizer: torch.optim.Optimizer, steps: int = 20, last: int = 400) -> LambdaLR:
    """A linear warm-up, then a line to zero."""

    def factor(step: int) -> float:
        return min((step + 1) / steps, max(0.0, (last - step) / (last - steps)))

    return LambdaLR(optimizer, factor)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the labels; -100 does not count."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The loss of predicting each token from those before it; padding does not count."""
    labels = batch[:, 1:].clone()
    labels[labels == PAD] = -100
    return token_loss(model(batch[:, :-1]), labels)


def follow(
    recorder: sonde.Recorder,
    train_step: Callable[..., Tensor],
    batches: Iterable[Any],
    start: int = 0,
    *,
    num_micro: int = 0,
) -> None:
    """Take a step with each batch, and print the loss now and then.

    With `num_micro`, so many batches make an update, and the step function is told the last.
    """
    for number, batch in enumerate(batches, start + 1):
        last = number % num_micro == 0 if num_micro else None
        loss = recorder.step(train_step, batch, last=last)
        if number % (20 * max(1, num_micro)) == 0:
            print(f"iter {number}: loss {float(loss):.4f}", flush=True)


def train(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], Tensor],
    batches: Iterable[Any],
    *,
    has_text: bool = True,
    **named: Any,
) -> None:
    """Train as usual: loss, backward, clipping, optimizer, scheduler."""
    scheduler = named.get("scheduler")
    reads = decode if has_text else None
    with sonde.Recorder(job.run, model, optimizer, decode=reads, **named) as recorder:

        def train_step(batch: Any) -> Tensor:
            loss = recorder.loss(loss_of(batch))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches)


@dataclass
class Parts:
    """All that a resumed training is made of."""

    model: GPT
    optimizer: torch.optim.Optimizer
    scheduler: LambdaLR
    rows: Tensor
    data_seed: int = 5
    first_batch: int | None = None
    """The position in the data where the resumed part begins; None is the right one."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything else with a state, by name."""
    spoil: Callable[[int, Tensor], Tensor] | None = None
    """What becomes of the batch of a step, where the data is to be bad."""

    def state(self, step: int) -> dict[str, Any]:
        """A complete checkpoint."""
        return {
            "step": step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": torch.get_rng_state(),
            "extra": {name: part.state_dict() for name, part in self.extra.items()},
        }

    def load(self, state: dict[str, Any], *left_out: str) -> int:
        """Load all of a checkpoint but what is left out; return its step."""
        if "model" not in left_out:
            self.model.load_state_dict(state["model"])
        if "optimizer" not in left_out:
            self.optimizer.load_state_dict(state["optimizer"])
        if "scheduler" not in left_out:
            self.scheduler.load_state_dict(state["scheduler"])
        if "extra" not in left_out:
            for name, part in self.extra.items():
                part.load_state_dict(state["extra"][name])
        if "generator" not in left_out:
            torch.set_rng_state(state["generator"])
        return int(state["step"])


def parts(seed: int = 1, lr: float = 3e-3, **changes: Any) -> Parts:
    """A GPT, AdamW, a warm-up and a corpus."""
    model = gpt(seed, **changes)
    optimizer = adamw(model, lr)
    return Parts(model, optimizer, warm_up(optimizer), blocks())


def read_checkpoint(job: Job, step: int = SAVED) -> dict[str, Any]:
    """Read what the first part saved."""
    state: dict[str, Any] = torch.load(job.checkpoints / f"{step}.pt", weights_only=True)
    return state


def resume_training(
    job: Job,
    whole: Parts,
    load: Callable[[], int],
    *,
    before_first: Callable[[sonde.Recorder], None] | None = None,
) -> None:
    """Train; save at 50 and 100, be killed at 120; as part 2 load, and go on to 180."""
    model = whole.model
    recorder = sonde.Recorder(
        job.run,
        model,
        whole.optimizer,
        decode=decode,
        scheduler=whole.scheduler,
        **whole.extra,
    )
    start = 0
    if job.part == 2 and not sonde.is_replay():
        start = load()
        recorder.num_updates = start
        if before_first is not None:
            before_first(recorder)
    scaler = whole.extra.get("scaler")

    def train_step(batch: Tensor) -> Tensor:
        loss = recorder.loss(next_token_loss(model, batch))
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(whole.optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            whole.optimizer.step()
        else:
            scaler.step(whole.optimizer)
            scaler.update()
        whole.scheduler.step()
        whole.optimizer.zero_grad()
        return loss.detach()

    position = start
    if job.part == 2 and whole.first_batch is not None:
        position = whole.first_batch
    last = KILLED if job.part == 1 else LAST
    for number in range(start + 1, last + 1):
        batch = batch_at(whole.rows, position, seed=whole.data_seed)
        if whole.spoil is not None:
            batch = whole.spoil(number, batch)
        loss = recorder.step(train_step, batch)
        position += 1
        if number % 20 == 0:
            print(f"iter {number}: loss {float(loss):.4f}", flush=True)
        if job.part == 1 and number in (50, SAVED):
            job.checkpoints.mkdir(parents=True, exist_ok=True)
            torch.save(whole.state(number), job.checkpoints / f"{number}.pt")
    recorder.close()


def declare(recorder: sonde.Recorder, what: str) -> None:
    """Tell the recorder of a change made on purpose, where it can be told."""
    expect = getattr(recorder, "expect", None)
    if expect is not None:
        expect(what)
