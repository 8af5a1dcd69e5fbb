"""Loops for the second set of cases, in the styles that people write.

`nano` is nanoGPT's: the model returns its loss, micro-batches, a scheduler. `over` walks a loader
for epochs. `watched` changes nothing in a plain loop but makes a recorder. `Session` saves, is
killed, and goes on from its own checkpoint.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.field_cases.declaration import Job
from benchmarks.field_cases.loops import declare
from torch import Tensor, nn

import sonde


def begin(seed: int = 1337) -> None:
    """The first line of a script."""
    random.seed(seed)
    torch.manual_seed(seed)


def say(step: int, loss: Any, every: int = 25) -> None:
    """Log the loss now and then."""
    if step % every == 0:
        value = loss.item() if isinstance(loss, Tensor) else loss
        print(f"step {step} | loss {value:.4f}", flush=True)


def nano(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    draw: Callable[[int], Tensor],
    steps: int,
    *,
    micro: int = 1,
    clip: float = 1.0,
    **named: Any,
) -> None:
    """nanoGPT's loop: rows are cut into inputs and targets, the model returns its loss."""
    scheduler = named.get("scheduler")
    recorder = sonde.Recorder(job.run, model, optimizer, **named)

    def train_step(rows: Tensor, last: bool = True) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        (loss / micro).backward()
        if last:
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if scheduler is not None:
                scheduler.step()
        return loss

    for number in range(steps * micro):
        last = (number + 1) % micro == 0
        loss = recorder.step(train_step, draw(number), last=last if micro > 1 else None)
        if last:
            say((number + 1) // micro, loss)
    recorder.close()


def over(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    loss_of: Callable[[Any], Tensor],
    *,
    clip: float = 0.0,
    scheduler: Any = None,
    **named: Any,
) -> None:
    """One loss function, one optimizer; zero the gradients first, as the tutorials do."""
    if scheduler is not None:
        named["scheduler"] = scheduler
    with sonde.Recorder(job.run, model, optimizer, **named) as recorder:

        def train_step(batch: Any) -> float:
            optimizer.zero_grad()
            loss = recorder.loss(loss_of(batch))
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            return loss.item()

        for step, batch in enumerate(batches, 1):
            say(step, recorder.step(train_step, batch))


def watched(
    job: Job,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    loss_of: Callable[[Any], Tensor],
    **named: Any,
) -> None:
    """A loop that cannot be restructured: a recorder is made, and is told the loss."""
    recorder = sonde.Recorder(job.run, model, optimizer, **named)
    for step, batch in enumerate(batches, 1):
        loss = loss_of(batch)
        recorder.loss(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)


@dataclass
class Session:
    """A training with checkpoints of its own."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    draw: Callable[[int], Any]
    """The batch of a position in the data, from 0."""
    loss_of: Callable[[Any], Tensor]
    saved: int = 90
    killed: int = 110
    last: int = 170
    clip: float = 1.0
    named: dict[str, Any] = field(default_factory=dict)
    """Whatever else has a state: scheduler, scaler."""
    decode: Any = None
    moved: int = 0
    """How far the position in the data is off after the resume."""
    after: Callable[[int], None] | None = None
    """What is done after each update."""

    def state(self, step: int) -> dict[str, Any]:
        """A complete checkpoint."""
        return {
            "step": step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            **{name: part.state_dict() for name, part in self.named.items()},
        }

    def load(self, state: dict[str, Any], *left_out: str) -> int:
        """Load all of a checkpoint but what is left out; return its step."""
        whole = {"model": self.model, "optimizer": self.optimizer, **self.named}
        for name, part in whole.items():
            if name not in left_out:
                part.load_state_dict(state[name])
        if "rng" not in left_out:
            torch.set_rng_state(state["rng"])
        return int(state["step"])

    def run(
        self,
        job: Job,
        load: Callable[[dict[str, Any]], int] | None = None,
        *,
        save: Callable[[int], dict[str, Any]] | None = None,
        expect: str = "",
    ) -> None:
        """Train, save, be killed; as part 2, load as the script does, and go on."""
        recorder = sonde.Recorder(
            job.run, self.model, self.optimizer, decode=self.decode, **self.named
        )
        path = job.checkpoints / "ckpt.pt"
        start = 0
        position = 0
        if job.part == 2 and not sonde.is_replay():
            state = torch.load(path, weights_only=True)
            start = self.load(state) if load is None else load(state)
            recorder.num_updates = start
            position = start + self.moved
            if expect:
                declare(recorder, expect)
        train_step = self._step(recorder)
        end = self.killed if job.part == 1 else self.last
        for number in range(start + 1, end + 1):
            loss = recorder.step(train_step, self.draw(position))
            position += 1
            say(number, loss, 15)
            if self.after is not None:
                self.after(number)
            if job.part == 1 and number == self.saved:
                job.checkpoints.mkdir(parents=True, exist_ok=True)
                torch.save(self.state(number) if save is None else save(number), path)

    def _step(self, recorder: sonde.Recorder) -> Callable[[Any], Tensor]:
        scheduler = self.named.get("scheduler")
        scaler = self.named.get("scaler")

        def train_step(batch: Any) -> Tensor:
            loss = recorder.loss(self.loss_of(batch))
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.unscale_(self.optimizer)
            else:
                loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            if scaler is not None:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()
            if scheduler is not None:
                scheduler.step()
            self.optimizer.zero_grad()
            return loss.detach()

        return train_step
