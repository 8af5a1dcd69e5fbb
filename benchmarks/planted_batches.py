"""Many bad batches in one run: a training goes on over them, and each is a case of its own. Steps
without a fault lie between them.
"""

import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.planted_corpora import NOT_LATIN, OWN_LANGUAGES
from benchmarks.planted_data import PlantedData
from benchmarks.planted_kinds import ALL, DUPLICATED, PAIRS, RULELESS, foreign
from benchmarks.planted_site import Site, go_on
from benchmarks.planted_tasks import BaseRun

from sonde.data.datasets import PairDataset
from sonde.train.recipe import fingerprints

SHARES: Final = ("1", "4", "quarter", "three quarters")
"""How many rows of a batch are bad."""
_APART: Final = 9
"""Steps from one bad batch to the next."""
_CHANGED: Final = 0.2
"""A text is another one when this part of its characters are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadBatch:
    """One bad batch."""

    kind: str
    share: str
    step: int
    samples: frozenset[int]
    accepted: frozenset[str]


def plant_batches(
    base: BaseRun, folder: Path, wanted: Sequence[tuple[str, str]], seed: int
) -> list[BadBatch]:
    """Plant a kind and a share in one batch after another of a copy of a run, and train on over
    them; the copy is `folder/run`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base.data, folder / "data")
    shutil.copytree(base.directory, folder / "run")
    last = base.last + _APART * (len(wanted) + 1)
    settings = replace(base.settings, data=str(folder / "data"), max_updates=last)
    data = PlantedData(settings, folder / "data", own_language=OWN_LANGUAGES.get(base.task, ""))
    generator = random.Random(f"{base.task}-{seed}")
    found = [
        _plant(
            data, kind, share, base.last + _APART * (number + 1) + generator.randrange(4), generator
        )
        for number, (kind, share) in enumerate(wanted)
    ]
    data.write()
    site = Site(
        base=base,
        run=folder / "run",
        data=folder / "data",
        settings=settings,
        seed=seed,
        step=base.last,
    )
    go_on(site, data=fingerprints(data.directory))
    return found


def kinds_for(base: BaseRun) -> list[str]:
    """The kinds that can be planted in a training."""
    pairs = list(PAIRS) if "text.de" in {path.name for path in base.data.parent.iterdir()} else []
    return [*ALL, "duplicated", *pairs]


def _plant(
    data: PlantedData, kind: str, share: str, step: int, generator: random.Random
) -> BadBatch:
    samples = data.batch(step)
    num = {"1": 1, "4": 4, "quarter": len(samples) // 4, "three quarters": 3 * len(samples) // 4}[
        share
    ]
    if kind in ("duplicated", "mismatched"):
        num = max(num, 4)
    rows = generator.sample(samples, min(max(num, 1), len(samples)))
    accepted = PAIRS.get(kind, DUPLICATED)
    if kind == "duplicated":
        data.copy_row(rows[0], rows[1:])
    elif kind == "mismatched":
        rows = data.turn_targets(
            rows if len(rows) > 8 else samples[: max(4, math.ceil(len(samples) / 4))]
        )
    elif kind == "truncated":
        rows = [row for row in rows if data.truncate(row)]
    elif kind in ("copied", "swapped"):
        rows = [row for row in rows if data.cross(row, both=kind == "swapped")]
    else:
        accepted = ALL[kind].accepted
        rows = [row for row in rows if _put(data, row, kind, generator)]
    if data.own_language in NOT_LATIN and ("foreign_language" in accepted or kind in RULELESS):
        accepted |= {"other_script"}  # what is made of Latin letters is that
    return BadBatch(kind=kind, share=share, step=step, samples=frozenset(rows), accepted=accepted)


def _put(data: PlantedData, row: int, kind: str, generator: random.Random) -> bool:
    """Give a row a text of a kind; False when it would hardly differ: there are no capitals in
    Japanese, and no Latin letters to shift in Russian.
    """
    text = data.text(row)
    text = text if len(text) > 8 else f"{text} and so on and on"
    made = (foreign(kind, data.own_language) or ALL[kind].make)(text, generator)
    if sum(old != other for old, other in zip(text, made, strict=False)) < _CHANGED * min(
        len(text), len(made)
    ):
        return False
    data.put_text(row, made)
    return True


def is_translation(data: PlantedData) -> bool:
    """Do samples have sources?"""
    return isinstance(data.dataset, PairDataset)
