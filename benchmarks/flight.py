"""What the recorder costs: python benchmarks/flight.py

The calling thread's CPU time a step, beside the bare loop in one run, best of many rounds: a step
function that does nothing, on a batch of 12 x 1024 tokens, one process, in rounds of 200 steps. The
hooks of a loss and an optimizer, the writer thread's CPU, the agreement of ranks, the memory of the
ring, the stall of a kept state beside one copy of it, and the scene of an event are told apart.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table

from sonde.forensics.verdict import read_verdict
from sonde.recorder.numbers import exchange
from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.run import Run

STEPS = 200
ROUNDS = 30


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
    """The recorder around a step function that does nothing but name its loss and move an optimizer
    of one parameter.
    """
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch = torch.randint(0, 50000, (12, 1024))
    loss = torch.tensor(2.0)
    found = {}
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        settings = RecorderOptions(state_every=10**9)
        recorder = Recorder(run, model, optimizer, options=settings)

        def nothing(_: torch.Tensor) -> torch.Tensor:
            return loss

        def moving(_: torch.Tensor) -> torch.Tensor:
            recorder.loss(loss)
            optimizer.step()
            return loss

        recorder.step(moving, batch)
        found["bare, nothing"] = cpu_of(lambda: nothing(batch))
        found["watched, nothing"] = cpu_of(
            lambda: recorder.step(lambda one, _: nothing(one), batch, last=True)
        )
        recorder.close()
        found["bare, loss and optimizer"] = cpu_of(lambda: moving(batch))
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        recorder = Recorder(run, model, optimizer, options=settings)
        recorder.step(moving, batch)
        found["watched, loss and optimizer"] = cpu_of(lambda: recorder.step(moving, batch))
        recorder.flush()
        num_steps = ROUNDS * STEPS
        found["writer thread a step"] = recorder.keeper.worker.cpu_seconds * 1e6 / num_steps
        found["ring, MB"] = settings.recent_steps * batch.nbytes / 1e6
    return found


def state_stall(num_parameters: int = 10_000_000) -> dict[str, float]:
    """How long training waits for a kept state, beside one copy of it into memory that is there
    already.
    """
    model = nn.Linear(num_parameters // 1000, 1000, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    optimizer.zero_grad()
    tensors = [
        model.weight.detach(),
        *(moment for moment in optimizer.state[model.weight].values() if moment.dim()),
    ]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    copied = []
    stalled = []
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        recorder = Recorder(run, model, optimizer, options=RecorderOptions(state_every=1))
        recorder.keeper.keep_state(0)
        for number in range(1, 13):
            recorder.keeper.flush()
            started = time.perf_counter()
            torch._foreach_copy_(copies, tensors)
            copied.append(time.perf_counter() - started)
            started = time.perf_counter()
            recorder.keeper.keep_state(number)
            stalled.append(time.perf_counter() - started)
    return {"one copy, ms": min(copied) * 1000, "stall of a kept state, ms": min(stalled) * 1000}


def scene_seconds() -> float:
    """How long the scene of a garbled row takes with a small model: best of three trainings."""
    return min(_one_scene() for _ in range(3))


def _one_scene() -> float:
    generator = torch.Generator().manual_seed(1)
    text = torch.tensor(
        [
            ord(letter)
            for letter in "the cat sat on a mat while dogs ran after red balls in green parks " * 40
        ]
    )
    model = nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tempfile.TemporaryDirectory() as folder, Run(Path(folder, "run")) as run:
        recorder = Recorder(run, model, optimizer, decode=lambda tokens: "".join(map(chr, tokens)))

        def train_step(rows: torch.Tensor) -> torch.Tensor:
            loss = recorder.loss(
                F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        for step in range(1, 121):
            starts = torch.randint(len(text) - 65, (12,), generator=generator).tolist()
            rows = torch.stack([text[start : start + 65] for start in starts])
            if step == 120:
                # what is loaded in the background in the first minutes of a training is there by
                # then
                time.sleep(2)
                rows[3] = torch.randint(33, 126, (65,), generator=generator)
            recorder.step(train_step, rows)
        return read_verdict(run.directory, 120).seconds


def agreement() -> float:
    """Microseconds of wall time that two ranks on this machine (gloo) take to bring their numbers
    together; the better of both.
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        __file__,
        "--rank",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return min(float(line) for line in done.stdout.split())


def _as_rank() -> None:
    dist.init_process_group("gloo")
    best = float("inf")
    for _ in range(50):
        started = time.perf_counter_ns()
        for _ in range(20):
            exchange([2.0], 12288, 1.0, in_time=False)
        best = min(best, (time.perf_counter_ns() - started) / 20000)
    sys.stdout.write(f"{best:.1f}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def main() -> None:
    """Print the figures."""
    if "--rank" in sys.argv:
        _as_rank()
        return
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    cost = step_cost()
    stall = state_stall()
    rows = [
        ("a step function that does nothing", cost["watched, nothing"] - cost["bare, nothing"]),
        (
            "with its loss said and an optimizer's hooks",
            cost["watched, loss and optimizer"] - cost["bare, loss and optimizer"],
        ),
        ("the writer thread", cost["writer thread a step"]),
        ("two ranks agree on the numbers (wall time)", agreement()),
    ]
    print(
        markdown_table(
            ["what a step costs", "µs"], [(name, f"{value:.1f}") for name, value in rows]
        )
    )
    copy = stall["one copy, ms"]
    kept = stall["stall of a kept state, ms"]
    print()
    print(
        markdown_table(
            ["", ""],
            [
                ("ring of batches", f"{cost['ring, MB']:.2f} MB, references to 16 batches"),
                (
                    "stall of a kept state, 10M parameters",
                    f"{kept:.1f} ms, {kept / copy:.2f} of one copy ({copy:.1f} ms)",
                ),
                ("scene of an event, small model", f"{scene_seconds():.2f} s"),
            ],
        )
    )


if __name__ == "__main__":
    main()
