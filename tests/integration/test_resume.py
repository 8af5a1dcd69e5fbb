"""A run that was stopped anywhere, by anything, and started again is the run that was never
stopped: weights, log and ledger, bit for bit.

Stopped at random points: in the forward of any micro-batch, so in the middle of an epoch, of an
accumulation and of an evaluation; and at any disk call of a save. By an exception, SIGTERM, kill
-9, a failing disk. On one process and on two ranks.
"""

import errno
import functools
import json
import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_injection import failing, faults_where, kill
from rank_group import run_ranks
from tiny_training import Regression, events, make_trainer, standing_log, weights
from torch import Tensor

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.compat.nemo.evaluator import EvaluatorCallback
from sonde.run import Run
from sonde.spikes.ledger_log import read_ledger
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput

NUM_UPDATES = 13
WAYS = ("exception", "SIGTERM", "kill", "kill in a save", "disk error in a save")


class PlantedError(Exception):
    pass


class StopAt:
    """Stops the process in the forward pass number `number`."""

    def __init__(self, number: int, way: str) -> None:
        self.number = number
        self.way = way

    def __call__(self, batch: Tensor) -> Tensor:
        self.number -= 1
        if self.number == 0:
            if self.way == "exception":
                raise PlantedError
            os.kill(os.getpid(), signal.SIGTERM if self.way == "SIGTERM" else signal.SIGKILL)
        return batch


@contextmanager
def fault_in_a_save(number: int, fault: Any) -> Iterator[None]:
    """Meets the disk call number `number` that a thread saving checkpoints makes."""
    left = [number]

    def hit(operation: str, position: int) -> bool:
        if threading.current_thread().name != "sonde-checkpoint":
            return False
        left[0] -= 1
        return left[0] == 0

    with faults_where(hit, fault):
        yield


class Named(Regression):
    """Regression that says which samples it had, so that the ledger has something to keep."""

    def compute(self, batch: Tensor) -> StepOutput:
        output = super().compute(batch)
        ids = [("numbers", int(1e6 * row[0].abs())) for row in batch]
        counts = torch.full((len(batch),), 4)
        return replace(
            output, sample_losses=output.tensors["losses"], sample_ids=ids, token_counts=counts
        )


class Drawing(Callback):
    """Draws from Python's generator at every step, and remembers: a resume must bring both back."""

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def on_step_end(self, context: Context) -> None:
        self.drawn.append(random.random())

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = list(state["drawn"])


def train(directory: Path, rank: int, world_size: int, spoil: Callable[[Tensor], Tensor]) -> None:
    random.seed(5)
    drawing = Drawing()
    evaluator = EvaluatorCallback(
        ["losses"],
        lambda _, kept: kept.setdefault("draws", []).append(random.random()),
        lambda kept: {"draws": len(kept["draws"])},
        eval_step=3,
    )
    with Run(directory, rank=rank, world_size=world_size) as run:
        trainer, task = make_trainer(
            run, rank, world_size, Named(spoil), update_freq=2, log_interval=3, save_every_updates=2
        )
        trainer.train(stop=StopWhen(max_updates=NUM_UPDATES), callbacks=[drawing, evaluator])
    (directory / f"result{rank}.json").write_text(json.dumps([weights(task), drawing.drawn]))


def result(directory: Path, world_size: int) -> tuple[list[Any], list[Any], list[Any]]:
    ends = [
        json.loads((directory / f"result{rank}.json").read_text()) for rank in range(world_size)
    ]
    history = read_ledger(directory)
    ledger = sorted(zip(*(column.tolist() for column in history.rows), strict=True))
    assert len(ledger) > NUM_UPDATES
    return ends, standing_log(directory), ledger


def start(
    directory: Path, world_size: int, spoil: Callable[[Tensor], Tensor], faults: Any, on_rank: int
) -> bool:
    """One start of the run, with its fault on one rank; True when it came to its end."""

    def work(rank: int) -> None:
        block: AbstractContextManager[None] = faults() if rank == on_rank else nullcontext()
        with block:
            train(directory, rank, world_size, spoil if rank == on_rank else lambda batch: batch)

    try:
        run_ranks(world_size, work)
    except AssertionError:
        return False
    return True


def stop_and_go_on(directory: Path, world_size: int, seed: int) -> list[bool]:
    """Stop a run twice at points that follow from `seed`, then let it end; did each start come to
    its end?
    """
    ended = []
    for attempt in range(2):
        chance = random.Random(1000 * seed + attempt)
        way = WAYS[(seed + attempt) % len(WAYS)]
        spoil = StopAt(0, "")
        faults: Callable[[], AbstractContextManager[None]] = nullcontext
        on_rank = chance.randrange(world_size)
        if "save" in way:
            number = chance.randint(1, 60)
            fault = kill if "kill" in way else failing(errno.EIO)
            faults = functools.partial(fault_in_a_save, number, fault)
            on_rank = 0
        else:
            spoil = StopAt(chance.randint(1, 30 // world_size), way)
        ended.append(start(directory, world_size, spoil, faults, on_rank))
    ended.append(start(directory, world_size, StopAt(0, ""), nullcontext, 0))
    return ended


@functools.cache
def result_of_whole_run(world_size: int) -> tuple[list[Any], list[Any], list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        assert start(Path(folder) / "whole", world_size, StopAt(0, ""), nullcontext, 0)
        return result(Path(folder) / "whole", world_size)


def check(tmp_path: Path, world_size: int, seed: int) -> None:
    ended = stop_and_go_on(tmp_path / "parts", world_size, seed)
    assert ended[-1]
    ends, log, ledger = result(tmp_path / "parts", world_size)
    expected_ends, expected_log, expected_ledger = result_of_whole_run(world_size)
    assert ends == expected_ends
    assert log == expected_log
    assert ledger == expected_ledger


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    """Train a little here, so that what torch imports at its first step is there in every forked
    child.
    """
    make_trainer()[0].train(stop=StopWhen(max_updates=2))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_run_stopped_at_random_points_ends_like_one_that_was_not(
    tmp_path: Path, world_size: int, seed: int
) -> None:
    check(tmp_path, world_size, seed)


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_stopped_runs_end_like_one_that_was_not(
    tmp_path: Path, world_size: int, seed: int
) -> None:
    check(tmp_path, world_size, seed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 5, 6, 7])
def test_a_kill_in_accumulation_or_evaluation_is_as_if_it_had_not_been(
    tmp_path: Path, number: int
) -> None:
    assert not start(tmp_path / "parts", 1, StopAt(number + 10, "kill"), nullcontext, 0)
    assert start(tmp_path / "parts", 1, StopAt(0, ""), nullcontext, 0)
    assert result(tmp_path / "parts", 1) == result_of_whole_run(1)
    assert len(events(tmp_path / "parts", "start")) == 2
