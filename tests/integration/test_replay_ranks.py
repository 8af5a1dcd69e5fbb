"""Replay of real runs, on one process and on two ranks: random steps come out bit for bit, also
with another number of ranks.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_group import run_ranks
from replayed_runs import NUM_UPDATES, small_settings, train_small
from small_corpus import prepare_corpus
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.errors import SettingError
from sonde.forensics.replay import Replay
from sonde.forensics.trainer_seams import refuse_wrapped
from sonde.records.journal import read_steps
from sonde.records.replay_order import ReplayOptions
from sonde.run import Run
from sonde.train.recipe import build, fingerprints

LONG = {"max_updates": 60, "save_every_updates": 16}
KINDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "translation, float32": (("en", "de"), {}),
    "translation, bfloat16, update_freq 1": (
        ("en", "de"),
        {"precision": "bfloat16", "update_freq": 1},
    ),
    "translation, float16": (("en", "de"), {"precision": "float16"}),
    "language model, float32": (("en",), {"block_size": 12}),
    "language model, bfloat16": (("en",), {"block_size": 12, "precision": "bfloat16"}),
}


def train_on_ranks(data: Path, directory: Path, world_size: int, **others: Any) -> Path:
    """What `sonde train` does on each of several ranks."""
    own = small_settings(data, **others)

    def work(rank: int) -> str:
        pieces = build(own)
        with Run(
            directory,
            config=own.as_saved(),
            data=fingerprints(pieces.directory),
            rank=rank,
            world_size=world_size,
        ) as run:
            return pieces.trainer(run).train(stop=pieces.settings)

    run_ranks(world_size, work)
    return directory


def losses_of_replay(
    run: Path, steps: list[int], options: ReplayOptions | None = None
) -> list[float]:
    replay = Replay(run, options=options)
    losses = []
    for step in steps:
        replay.go_to(step)
        losses.append(replay.update().loss)
    assert ranks.world_size() > 1 or replay.num_updates == steps[-1]
    return losses


def sonde(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sonde", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_random_steps_of_one_process_are_reproduced(kind: str, tmp_path: Path) -> None:
    languages, others = KINDS[kind]
    run = train_small(
        prepare_corpus(tmp_path / "corpus", languages=languages), tmp_path / "run", **others
    )
    recorded = read_steps(run).by_number
    steps = random.Random(3).sample(range(1, NUM_UPDATES + 1), 6)
    assert losses_of_replay(run, steps) == [recorded[step].loss for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["translation, float32", "language model, bfloat16"])
def test_random_steps_of_two_ranks_are_reproduced_on_two(kind: str, tmp_path: Path) -> None:
    languages, others = KINDS[kind]
    data = prepare_corpus(tmp_path / "corpus", languages=languages)
    run = train_on_ranks(data, tmp_path / "run", 2, **others)
    recorded = read_steps(run).by_number
    steps = random.Random(4).sample(range(1, NUM_UPDATES + 1), 5)
    expected = [recorded[step].loss for step in steps]
    assert run_ranks(2, lambda _: losses_of_replay(run, steps)) == [expected, expected]
    on_one = losses_of_replay(run, steps, ReplayOptions(world_size=1))
    assert on_one == pytest.approx(expected, rel=1e-2 if "bfloat16" in kind else 1e-5)


@pytest.mark.slow
def test_ordered_sums_of_two_ranks_are_reproduced_on_one(tmp_path: Path) -> None:
    data = prepare_corpus(tmp_path / "corpus")
    run = train_on_ranks(data, tmp_path / "run", 2, ordered=True)
    recorded = read_steps(run).by_number
    steps = [13, 4, 9, 2]
    assert losses_of_replay(run, steps, ReplayOptions(world_size=1)) == [
        recorded[step].loss for step in steps
    ]


@pytest.mark.slow
def test_the_command_starts_as_many_ranks_as_the_run_had(tmp_path: Path) -> None:
    data = prepare_corpus(tmp_path / "corpus")
    run = train_on_ranks(data, tmp_path / "run", 2)
    done = sonde("replay", str(run), "--step", "7", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["replay"]["reproduced"] is True
    assert report["replay"]["from_step"] == 4
    done = sonde("replay", str(run), "--step", "7", "--weights-from", "5")
    assert done.returncode == 1
    assert "no valid checkpoint after 5 steps" in done.stderr
    assert done.stderr.count("error:") == 1


@pytest.mark.slow
def test_a_wrapped_model_is_refused() -> None:
    def work(_: int) -> str:
        with pytest.raises(SettingError, match="DistributedDataParallel cannot be replayed"):
            refuse_wrapped(DistributedDataParallel(nn.Linear(2, 2)))
        return "refused"

    assert run_ranks(1, work) == ["refused"]


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_random_steps_are_reproduced(kind: str, world_size: int, tmp_path: Path) -> None:
    languages, others = KINDS[kind]
    data = prepare_corpus(tmp_path / "corpus", languages=languages)
    run = train_on_ranks(data, tmp_path / "run", world_size, **LONG, **others)
    recorded = read_steps(run).by_number
    steps = random.Random(kind).sample(range(1, 61), 20)
    expected = [recorded[step].loss for step in steps]
    assert run_ranks(world_size, lambda _: losses_of_replay(run, steps)) == [expected] * world_size
