"""One odd row among 32 is named by what can be read in it, although the loss of the step is normal:
planted into a real training, trained over, and diagnosed.
"""

import base64
import codecs
import quopri
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from benchmarks.planted_corpora import docstrings
from benchmarks.planted_data import PlantedData
from benchmarks.planted_site import Site, go_on
from benchmarks.planted_tasks import train_on

from sonde.forensics.diagnose import diagnose
from sonde.forensics.verdict import NOTHING
from sonde.train.recipe import fingerprints

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

_LAST: Final = 300
_APART: Final = 5
_CHANGED: Final = 0.1
_NUM_COPIES: Final = 6


def _pig_latin(text: str) -> str:
    return re.sub(r"\b([b-df-hj-np-tv-z]+)(\w+)", r"\2\1ay", text.lower())


def _quoted_printable(text: str) -> str:
    accented = " ".join(f"é{word}ü" for word in text.split())
    return quopri.encodestring(accented.encode()).decode().replace("\n", " ")


LONE: Final[dict[str, tuple[Callable[[str], str], str]]] = {
    "base64": (lambda text: base64.b64encode(text.encode()).decode(), "garbled_text"),
    "rot13": (lambda text: codecs.encode(text, "rot13"), "garbled_text"),
    "pig Latin": (_pig_latin, "foreign_language"),
    "zero-width spaces": ("\u200b".join, "control_characters"),
    "quoted-printable": (_quoted_printable, "mis_decoded"),
}
"""What is made of one row, and the cause that names it."""


def _plant_near_copies(data: PlantedData, rows: list[int], dice: random.Random) -> None:
    tokens = [int(token) for token in data.dataset[rows[0]].target]
    for row in rows[1:]:
        changed = [data.any_token(dice) if dice.random() < _CHANGED else token for token in tokens]
        data.put_tokens(row, changed)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A training on docstrings in batches of 32, and the step of each fault."""
    folder = tmp_path_factory.mktemp("lone")
    base = train_on(docstrings(), "docstrings", folder, num_updates=_LAST, batch=32, seed=2)
    names = [*LONE, "near-copies"]
    last = _LAST + _APART * (len(names) + 1)
    settings = replace(base.settings, max_updates=last)
    data = PlantedData(settings, base.data)
    dice = random.Random(8)
    steps = {name: _LAST + _APART * (place + 1) for place, name in enumerate(names)}
    for name, step in steps.items():
        rows = dice.sample(data.batch(step), _NUM_COPIES)
        if name in LONE:
            data.put_text(rows[0], LONE[name][0](data.text(rows[0])))
        else:
            _plant_near_copies(data, rows, dice)
    data.write()
    site = Site(
        base=base, run=base.directory, data=base.data, settings=settings, seed=2, step=_LAST
    )
    go_on(site, data=fingerprints(data.directory))
    return base.directory, steps


@pytest.mark.parametrize("name", LONE)
def test_a_lone_odd_row_is_named(run: tuple[Path, dict[str, int]], name: str) -> None:
    directory, steps = run
    first = diagnose(directory, step=steps[name]).causes[0]
    assert first.cause == LONE[name][1]
    assert len(first.suspects) == 1


def test_near_copies_are_duplicated_text(run: tuple[Path, dict[str, int]]) -> None:
    directory, steps = run
    first = diagnose(directory, step=steps["near-copies"]).causes[0]
    assert first.cause == "duplicated_text"
    assert len(first.suspects) == _NUM_COPIES


def test_a_step_without_an_odd_row_is_like_those_around_it(
    run: tuple[Path, dict[str, int]],
) -> None:
    directory, steps = run
    for step in (steps["base64"] + 1, steps["rot13"] + 2):
        assert diagnose(directory, step=step).causes[0].cause == NOTHING
