"""Training watched equals training unwatched, whatever the loop does: the same weights and
generators to the bit, nothing raised, nothing lost without a word.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops.mutants import MUTANTS
from loops.table import LOOPS

from sonde.records.journal import read_steps

SERVER = Path(__file__).with_name("server.py")
SINGLE = ("batch:", "optimizer:", "model:", "control:", "host:")
PAIRS = [name for name in LOOPS if not name.startswith(SINGLE)]
SINGLES = [name for name in LOOPS if name not in PAIRS]
HOSTS = ("host: Hugging Face", "host: Lightning", "host: Accelerate")


def in_turn() -> Iterator[Any]:
    """Yield the loops of one axis: `make test` tries every second one and the plain hosts, `make
    faults` all. A loop takes three seconds.
    """
    for place, name in enumerate(SINGLES):
        is_quick = name in HOSTS or (place % 2 == 0 and not name.startswith("host:"))
        yield name if is_quick else pytest.param(name, marks=pytest.mark.long_fault)


class LoopServer:
    """The process that forks loops."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, loop: str, *, watched: bool, spike: bool, mutant: str = "") -> dict[str, Any]:
        folder = self._folder / str(next(self._numbers))
        request = {
            "loop": loop,
            "watched": watched,
            "spike": spike,
            "folder": str(folder),
            "mutant": mutant,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return {**answer, "folder": folder}

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    found = LoopServer(tmp_path_factory.mktemp("loops"))
    yield found
    found.close()


def check(server: LoopServer, loop: str, *, spike: bool, mutant: str = "") -> None:
    """Run a loop watched and unwatched, and compare."""
    bare = server.run(loop, watched=False, spike=spike)
    assert "error" not in bare, bare["error"]
    watched = server.run(loop, watched=True, spike=spike, mutant=mutant)
    assert "error" not in watched, watched["error"] + watched["log"]
    assert watched["hash"] == bare["hash"], "the weights differ\n" + watched["log"]
    assert watched["generators"] == bare["generators"], "a generator moved\n" + watched["log"]
    assert "cannot be looked into" not in watched["log"]
    if bare["num_updates"] >= 0:
        recorded = read_steps(watched["folder"] / "run").by_number
        assert list(recorded) == list(range(1, bare["num_updates"] + 1)), watched["log"]
        if bare["losses"]:
            assert [step.loss for step in recorded.values()] == bare["losses"]
        assert bare["said"] in watched["log"]


def test_the_page_says_how_many_loops_there_are() -> None:
    page = SERVER.parents[2] / "docs" / "any-loop.md"
    assert f" {len(LOOPS)} odd but valid loops" in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("loop", [*in_turn()])
def test_a_watched_loop_with_an_event_ends_with_the_same_bits(
    server: LoopServer, loop: str
) -> None:
    check(server, loop, spike=True)


@pytest.mark.slow
@pytest.mark.long_fault
@pytest.mark.parametrize("loop", SINGLES)
def test_a_watched_loop_without_an_event_ends_with_the_same_bits(
    server: LoopServer, loop: str
) -> None:
    check(server, loop, spike=False)


@pytest.mark.slow
@pytest.mark.long_fault
@pytest.mark.parametrize("loop", PAIRS)
def test_a_pair_of_odd_parts_ends_with_the_same_bits(server: LoopServer, loop: str) -> None:
    check(server, loop, spike=True)


@pytest.mark.slow
@pytest.mark.long_fault
def test_mutants_of_guard_and_putting_back_are_caught(server: LoopServer) -> None:
    missed = []
    for name, (loop, _) in MUTANTS.items():
        with contextlib.suppress(AssertionError):
            check(server, loop, spike=True, mutant=name)
            missed.append(name)
    assert len(MUTANTS) == 12
    assert len(missed) <= 1, missed
