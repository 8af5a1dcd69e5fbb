"""The kinds of fault, and those that lie in the data: there from the start, as far as the run
knows.

Manifest and sidecars carry the fingerprints of the planted data. Whoever diagnoses the run is told
nothing.
"""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.planted_data import PlantedData
from benchmarks.planted_rank_faults import change_tokenizer, misorder
from benchmarks.planted_site import Planted, Site, go_on, make_site
from benchmarks.planted_state_faults import (
    blow_moment,
    change_dropout,
    corrupt_weight,
    flip_bit,
    jump_rate,
    lose_clipping,
    lose_moments,
    no_warm_up,
    overflow,
    put_back_weights,
    rise_of_the_rate,
)
from benchmarks.planted_tasks import LANGUAGE_MODEL, TRANSLATION, BaseRun
from benchmarks.planted_texts import foreign_text, garble

from sonde.train.recipe import fingerprints


def plant(kind: str, base: BaseRun, folder: Path, seed: int) -> Planted:
    """Plant a fault into a copy of a run below `folder`, and train on over it: the copy is
    `folder/run`.
    """
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.rmtree(folder / "data", ignore_errors=True)
    return KINDS[kind](make_site(base, folder, kind, seed))


def tasks_of(kind: str) -> tuple[bool, ...]:
    """With or without sources: the trainings that a fault can be planted into. Labels can be
    shuffled only where there are some.
    """
    return (True,) if kind == "shuffled labels" else (False, True)


def garble_document(site: Site) -> Planted:
    """Some samples that are no text any more."""
    data = PlantedData(site.settings, site.data)
    generator = site.generator
    rows = data.rows_of(site.step, generator.randint(*_num_rows(site)), generator)
    how = ""
    for row in rows:
        how, text = garble(data.text(row), site.seed, row)
        data.put_text(row, text)
    return _go_on_with(site, data, "garbled_text", rows, how)


def put_foreign(site: Site) -> Planted:
    """Some samples in another language."""
    data = PlantedData(site.settings, site.data)
    generator = site.generator
    language, text = foreign_text(
        site.seed, avoid=("German",) if site.base.task == TRANSLATION else ()
    )
    rows = data.rows_of(site.step, generator.randint(*_num_rows(site)), generator)
    words = text.split()
    for row in rows:
        first = generator.randrange(len(words) // 2)
        data.put_text(row, " ".join([*words[first:], *words]))
    return _go_on_with(site, data, "foreign_language", rows, language)


def repeat_token(site: Site) -> Planted:
    """One or two samples of one token, over and over."""
    data = PlantedData(site.settings, site.data)
    generator = site.generator
    rows = data.rows_of(site.step, generator.randint(1, 2), generator)
    token = data.any_token(generator)
    for row in rows:
        data.put_tokens(row, [token])
    return _go_on_with(site, data, "repetition", rows)


def duplicate_document(site: Site) -> Planted:
    """Most samples of a batch, or all, say the same."""
    data = PlantedData(site.settings, site.data)
    generator = site.generator
    rows = data.rows_of(site.step, 1_000, generator)
    rows = rows[: math.ceil(len(rows) * generator.uniform(0.6, 1.0))]
    data.copy_row(rows[0], rows[1:])
    return _go_on_with(site, data, "duplicated_text", rows)


def shuffle_labels(site: Site) -> Planted:
    """Some samples of a batch, or all, have one another's targets."""
    data = PlantedData(site.settings, site.data)
    generator = site.generator
    rows = data.rows_of(site.step, 1_000, generator)
    rows = data.turn_targets(rows[: max(4, math.ceil(len(rows) * generator.uniform(0.4, 1.0)))])
    return _go_on_with(site, data, "mismatched_pair", rows)


def _num_rows(site: Site) -> tuple[int, int]:
    """How many samples of a batch: a document fills several blocks of 64 tokens, but is one
    pair.
    """
    return (2, 4) if site.base.task == LANGUAGE_MODEL else (1, 3)


def _go_on_with(
    site: Site, data: PlantedData, cause: str, rows: list[int], how: str = ""
) -> Planted:
    data.write()
    go_on(site, data=fingerprints(data.directory))
    return Planted(cause=cause, step=site.step, samples=frozenset(rows), how=how)


STATE_KINDS: Final[Mapping[str, Callable[[Site], Planted]]] = {
    "learning-rate jump": jump_rate,
    "learning rate creeping up": rise_of_the_rate,
    "no warm-up, rate far too high": no_warm_up,
    "dropout changed at a restart": change_dropout,
    "clipping lost at a restart": lose_clipping,
    "corrupted weight": corrupt_weight,
    "earlier weights put back": put_back_weights,
    "blown moment": blow_moment,
    "moments lost": lose_moments,
    "bit flip in an activation": flip_bit,
    "fp16 overflow": overflow,
    "data order on one rank": misorder,
    "changed tokenizer": change_tokenizer,
}
"""Faults of state, settings, machine and feeding, by name."""
KINDS: Final[Mapping[str, Callable[[Site], Planted]]] = {
    "garbled document": garble_document,
    "duplicated document": duplicate_document,
    "shuffled labels": shuffle_labels,
    "wrong language": put_foreign,
    "repeated token": repeat_token,
    **STATE_KINDS,
}
"""All faults by name."""
