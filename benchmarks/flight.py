"""What the flight recorder costs: python benchmarks/flight.py

The calling thread's CPU time a step, beside the bare loop in one run, best of many rounds: a step function that does nothing, on a batch of
12 x 1024 tokens, one process. The writer thread's CPU, the memory of the ring and the stall of a kept state are told apart.
"""

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from sonde.flight.recorder import FlightRecorder
from sonde.flight.settings import FlightSettings
from sonde.run import Run

STEPS, ROUNDS = 40, 60


def cpu_of(step: Callable[[], object]) -> float:
    """Microseconds of this thread's CPU a call, best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.thread_time_ns()
        for _ in range(STEPS):
            step()
        best = min(best, (time.thread_time_ns() - started) / STEPS / 1000)
        time.sleep(0.1)  # the writer thread catches up outside of what is timed
    return best


def step_cost() -> dict[str, float]:
    """The recorder around a step function that does nothing but name its loss and move an optimiser of one parameter."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch, loss = torch.randint(0, 50000, (12, 1024)), torch.tensor(2.0)
    found = {}
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        settings = FlightSettings(state_every=10**9)
        flight = FlightRecorder(run, model, optimizer, settings=settings)

        def nothing(_: torch.Tensor) -> torch.Tensor:
            return loss

        def moving(_: torch.Tensor) -> torch.Tensor:
            flight.loss(loss)
            optimizer.step()
            return loss

        flight.step(moving, batch)
        found["bare, nothing"] = cpu_of(lambda: nothing(batch))
        found["watched, nothing"] = cpu_of(lambda: flight.step(lambda one, _: nothing(one), batch, last=True))
        flight.close()
        found["bare, loss and optimiser"] = cpu_of(lambda: moving(batch))
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        flight = FlightRecorder(run, model, optimizer, settings=settings)
        flight.step(moving, batch)
        found["watched, loss and optimiser"] = cpu_of(lambda: flight.step(moving, batch))
        flight.flush()
        num_steps = ROUNDS * STEPS
        found["writer thread a step"] = flight.keeper.writer_seconds * 1e6 / num_steps
        found["ring, MB"] = settings.ring_steps * batch.nbytes / 1e6
    return found


def state_stall(num_parameters: int = 10_000_000) -> dict[str, float]:
    """How long training waits for a kept state, beside one copy of it into memory that is there already."""
    model = nn.Linear(num_parameters // 1000, 1000, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    optimizer.zero_grad()
    tensors = [model.weight.detach(), *(one for one in optimizer.state[model.weight].values() if one.dim())]
    copies = [torch.empty_like(one) for one in tensors]
    copied, stalled = [], []
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        flight = FlightRecorder(run, model, optimizer, settings=FlightSettings(state_every=1))
        flight.keeper.keep_state(0)
        for number in range(1, 6):
            flight.keeper.flush()
            started = time.perf_counter()
            torch._foreach_copy_(copies, tensors)
            copied.append(time.perf_counter() - started)
            started = time.perf_counter()
            flight.keeper.keep_state(number)
            stalled.append(time.perf_counter() - started)
    return {"one copy, ms": min(copied) * 1000, "stall of a kept state, ms": min(stalled) * 1000}


def main() -> None:
    """Print the figures."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    cost = step_cost()
    for name, value in {**cost, **state_stall()}.items():
        sys.stdout.write(f"{name:32} {value:10.2f}\n")
    bare = cost["watched, loss and optimiser"] - cost["bare, loss and optimiser"]
    sys.stdout.write(f"{'the recorder, µs a step':32} {bare:10.2f}\n")


if __name__ == "__main__":
    main()
