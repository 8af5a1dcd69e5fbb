"""Every verb meets hostile content, and every kind of thing that is no file (faults 30, 36, 37,
45).
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hostile_run import KINDS, all_verbs, make_odd, make_place, problems_of, put

FILES = (
    "run/run.json",
    "run/lock.json",
    "run/records",
    "run/records/log.rank0.jsonl",
    "run/records/steps.rank0.jsonl",
    "run/records/spikes.rank0.jsonl",
    "run/records/events.rank0.jsonl",
    "run/index.sqlite",
    "run/skip-list.txt",
    "run/forensics",
    "run/forensics/verdict-300.json",
    "run/checkpoints",
    "run/checkpoints/step-000000000420",
    "run/checkpoints/step-000000000420/state.json",
    "run/checkpoints/step-000000000420/checksums.json",
    "run/probe/step0/rank0/debug.json",
    "data/train.en.bin",
    "data/train.en.idx",
    "data/train.en.json",
    "data/dict.txt",
)
READERS = (
    "runs",
    "show",
    "tail",
    "log",
    "compare-logs",
    "spikes",
    "plot",
    "inspect",
    "compare",
    "diagnose",
    "replay",
    "translate",
    "score",
    "completion",
)
"""Verbs that leave a run as it is, but for its index."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("hostile"))


def _copy(original: Path, to: Path) -> Path:
    shutil.copytree(original, to, symlinks=True, dirs_exist_ok=True)
    return to


@pytest.mark.fault(30, 36, 37, 45)
@pytest.mark.parametrize("verb", all_verbs())
def test_a_verb_shows_hostile_content_without_harm(
    verb: str, original: Path, tmp_path: Path
) -> None:
    found = problems_of(verb, _copy(original, tmp_path))
    assert not found, "\n\n".join(found)


@pytest.mark.fault(30)
@pytest.mark.slow
@pytest.mark.long_fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_copes_with_what_is_no_file(kind: str, original: Path, tmp_path: Path) -> None:
    found = []
    for number, name in enumerate(FILES):
        shared = _place_with(kind, name, original, tmp_path / str(number))
        for verb in all_verbs():
            place = (
                shared
                if verb in READERS
                else _place_with(kind, name, original, tmp_path / f"{number}-{verb}")
            )
            found += [f"{name} is {kind}: {problem}" for problem in problems_of(verb, place)]
            if place != shared:
                shutil.rmtree(place)
    assert not found, "\n\n".join(found)


def _place_with(kind: str, name: str, original: Path, to: Path) -> Path:
    place = _copy(original, to)
    put(kind, place / name, place)
    return place


@pytest.mark.long_fault
@pytest.mark.fault(28)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_verb_copes_with_files_that_are_not_its_to_read(original: Path) -> None:
    """As root everything may be read: a child that gives root up looks instead."""
    found = []
    with tempfile.TemporaryDirectory(prefix="sonde-unreadable-") as name:
        folder = Path(name)
        # Python itself may lie where only root may read: import everything before that is given up.
        for verb in READERS:
            problems_of(verb, _copy(original, folder / "warm"))
        folder.chmod(0o777)
        for number, file in enumerate(FILES):
            place = _copy(original, folder / str(number))
            for missing in ("index.sqlite", "lock.json"):
                (place / "run" / missing).touch()
            for path in (place, *place.rglob("*")):
                path.chmod(0o777)
            put("unreadable", place / file, place)
            found += [f"{file}: {problem}" for problem in _as_nobody(place)]
    assert not found, "\n\n".join(found)


def _as_nobody(place: Path) -> list[str]:
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            os.chdir(place)
            found = [problem for verb in READERS for problem in problems_of(verb, place)]
            os.write(sender, json.dumps([problem[:2000] for problem in found[:20]]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    problems: list[str] = json.loads(told)
    return problems


@pytest.mark.fault(34, 35, 36)
@pytest.mark.slow
@pytest.mark.parametrize(
    "verb", [verb for verb in all_verbs() if verb not in ("demo", "completion", "prepare")]
)
def test_a_verb_copes_with_odd_content(verb: str, original: Path, tmp_path: Path) -> None:
    place = _copy(original, tmp_path)
    make_odd(place)
    found = problems_of(verb, place)
    assert not found, "\n\n".join(found)
