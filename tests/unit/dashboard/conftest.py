"""A folder of runs, and a server over it."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dashboard_server import serving
from eventful_run import build_run

from sonde.dashboard.serve import DashboardServer
from sonde.data.datasets import open_pairs
from sonde.records.layout import RunLayout
from sonde.run import Run
from sonde.spikes.decoding import describe_datasets
from sonde.spikes.ledger import Ledger
from sonde.train.settings import RECIPE

EVENTFUL = 'run "><img onerror=x>'
"""The name of the eventful run."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An eventful run, three plain ones that differ in a setting, one of two ranks, an empty one,
    one that `sonde train` began, a damaged one.
    """
    folder = tmp_path_factory.mktemp("dashboard")
    eventful = build_run(folder)
    ledger = Ledger(
        RunLayout(eventful), 0, data=describe_datasets({"train": open_pairs(folder / "data")})
    )
    for step in (1, 2):
        ledger.add(
            step, [("train", row) for row in range(5)], np.array([0.1, 0.2, -0.3, 12.0, 0.5])
        )
    ledger.close()
    for number in range(3):
        with Run(
            folder / "sweep" / f"lr-{number}",
            config={"lr": 0.1**number, "dim": 64, "max_steps": 400},
        ) as run:
            for step in range(1, 201):
                loss = 1 + number + 5 / math.sqrt(step)
                run.logger.log(
                    step, {"loss": loss, "tokens": step * 100.0, "eval": {"bleu": step / 10}}
                )
    for rank in range(2):
        with Run(folder / "ranks", rank=rank, world_size=2) as run:
            for step in range(1, 51):
                run.logger.log(step, {"loss": 2.0 + rank})
    with Run(folder / "empty"):
        pass
    with Run(folder / "trained", config={"recipe": RECIPE}):
        pass
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{not json")
    return folder


@pytest.fixture(scope="session")
def server(runs: Path) -> Iterator[DashboardServer]:
    with serving(runs) as made:
        yield made
