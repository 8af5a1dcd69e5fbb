"""Every verb meets hostile content, and every kind of thing that is no file (faults 30, 36, 37, 45)."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from hostile_run import KINDS, all_verbs, make_place, problems_of, put

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


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("hostile"))


def _copy(original: Path, to: Path) -> Path:
    shutil.copytree(original, to, symlinks=True, dirs_exist_ok=True)
    return to


@pytest.mark.parametrize("verb", all_verbs())
def test_a_verb_shows_hostile_content_without_harm(verb: str, original: Path, tmp_path: Path) -> None:
    assert problems_of(verb, _copy(original, tmp_path)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unreadable"])
def test_every_verb_copes_with_what_is_no_file(kind: str, original: Path, tmp_path: Path) -> None:
    found = []
    for number, name in enumerate(FILES):
        for verb in all_verbs():
            place = _copy(original, tmp_path / f"{number}-{verb}")
            put(kind, place / name, place)
            found += [f"{name} is {kind}: {problem}" for problem in problems_of(verb, place)]
            shutil.rmtree(place)
    assert not found, "\n\n".join(found)
