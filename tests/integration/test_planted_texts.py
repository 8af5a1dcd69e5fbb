"""Every cause that is read in samples, with the fault that it is to name beside it: planted into a
real training, trained over, and diagnosed.

A cause of this kind that has no fault here fails
`test_every_cause_that_blames_samples_has_a_fault`.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import torch
from benchmarks.planted_corpora import Texts
from benchmarks.planted_data import PlantedData
from benchmarks.planted_site import Site, go_on
from benchmarks.planted_tasks import (
    LANGUAGE_MODEL,
    BaseRun,
    train_base,
    train_on,
    translated_sentences,
)

from sonde.forensics.causes import rules
from sonde.forensics.diagnose import diagnose
from sonde.train.recipe import fingerprints

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

_NUM_ROWS: Final = 4
_APART: Final = 6
"""Rows of a batch that are bad, and updates from one bad batch to the next."""
_RUSSIAN: Final = (
    "Вечером мы сидели на берегу реки и слушали, как ветер шумит в деревьях. Старый учитель"
    " рассказывал о своей молодости. "
)
_DUTCH: Final = (
    "De bakker op de hoek staat elke dag om vier uur op om het brood te bakken en kent bijna alle"
    " klanten bij naam. "
)

Make = Callable[[str, random.Random], str]
Plant = Callable[[PlantedData, list[int]], object]
"""Makes some rows of a batch bad."""

TEXTS: Final[dict[str, Make]] = {
    "garbled_text": lambda text, dice: "".join(
        dice.choice([*map(chr, range(33, 127)), " "]) for _ in text
    ),
    "mis_decoded": lambda text, _: (
        " ".join(f"é{word}ü" for word in text.split()).encode().decode("cp1252", "replace")
    ),
    "other_script": lambda *_: _RUSSIAN * 3,
    "foreign_language": lambda *_: _DUTCH * 3,
    "markup": lambda _, dice: " ".join(
        f'<td class="c{dice.randrange(99)}"><a href="/x/{dice.randrange(99)}.html">x</a></td>'
        for _ in range(20)
    ),
    "code": lambda _, dice: " ".join(
        f"if (x{dice.randrange(99)} != NULL) {{ buf[i++] = f(x, &y); }}" for _ in range(20)
    ),
    "table": lambda _, dice: " ".join(
        f"{dice.randrange(99999)} | {dice.random():.3f} |" for _ in range(60)
    ),
    "log": lambda _, dice: " ".join(
        f"2024-05-1{dice.randrange(9)} 07:{dice.randrange(10, 60)}:13,{dice.randrange(999)} ERROR"
        f" [worker-{dice.randrange(9)}] code={dice.randrange(599)}"
        for _ in range(20)
    ),
    "shouting": lambda text, _: text.upper(),
    "control_characters": lambda text, _: "\x07 ".join(text.split()),
    "repetition": lambda text, _: f"{' '.join(text.split()[:3])} " * 40,
    "empty": lambda text, dice: "".join(dice.choice(".,;:!?-() ") for _ in text),
}
"""What a document becomes; the name is the cause."""


def _with_text(make: Make) -> Plant:
    def plant(data: PlantedData, rows: list[int]) -> None:
        for row in rows:
            data.put_text(row, make(data.text(row), random.Random(row)))

    return plant


PAIRS: Final[dict[str, Plant]] = {
    "copied_target": lambda data, rows: [data.cross(row, both=False) for row in rows],
    "swapped_pair": lambda data, rows: [data.cross(row, both=True) for row in rows],
    "mismatched_pair": lambda data, rows: data.turn_targets(rows),
    "duplicated_text": lambda data, rows: data.copy_row(rows[0], rows[1:]),
    "hard_sample": _with_text(lambda text, _: " ".join(text.split()[::-1])),
}
"""What is done to some pairs; the name is the cause. Those of "truncated_target" stand in the
corpus (`_sentences`).
"""


class Planted(NamedTuple):
    """A training that went on over bad batches."""

    run: Path
    batches: dict[str, tuple[int, list[int]]]
    """By cause: the step, and its bad samples."""
    last: int
    """The last update."""


def _train_over(base: BaseRun, folder: Path, faults: Mapping[str, Plant]) -> Planted:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    last = base.last + _APART * (len(faults) + 1)
    settings = replace(base.settings, max_updates=last)
    data = PlantedData(settings, base.data)
    batches = {}
    for number, (cause, plant) in enumerate(faults.items(), 1):
        step = base.last + _APART * number
        rows = data.batch(step)[:_NUM_ROWS]
        plant(data, rows)
        batches[cause] = (step, rows)
    data.write()
    site = Site(
        base=base, run=base.directory, data=base.data, settings=settings, seed=0, step=base.last
    )
    go_on(site, data=fingerprints(data.directory))
    torch.set_num_threads(threads)
    return Planted(folder / "run", batches, last)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("documents")
    base = train_base(LANGUAGE_MODEL, folder, num_updates=200)
    return _train_over(base, folder, {cause: _with_text(make) for cause, make in TEXTS.items()})


def _sentences() -> tuple[Texts, list[int]]:
    """Pairs of one to three sentences; and those whose targets were cut after a few words. All of
    these have sources of the same length: one batch.
    """
    sentences = iter(translated_sentences(7_000, seed=7))
    dice = random.Random(3)
    pairs = [list(islice(sentences, dice.randint(1, 3))) for _ in range(3_000)]
    source, target = (
        [" ".join(sentence[side] for sentence in pair) for pair in pairs] for side in (0, 1)
    )
    cut = [
        place
        for place, text in enumerate(source)
        if text.count(".") == 3 and len(text.split()) == 27
    ][:_NUM_ROWS]
    for place in cut:
        target[place] = " ".join(target[place].split()[:6])
    return Texts(target, source), cut


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("pairs")
    texts, cut = _sentences()
    base = train_on(texts, "pairs", folder, num_updates=200, batch=16, seed=1)
    planted = _train_over(base, folder, PAIRS)
    data = PlantedData(base.settings, base.data)
    (step,) = [number for number in range(1, planted.last) if cut[0] in data.batch(number)]
    planted.batches["truncated_target"] = step, cut
    return planted


def assert_named(planted: Planted, cause: str) -> None:
    """The verdict names the cause first, and samples that it was planted into."""
    step, rows = planted.batches[cause]
    first = diagnose(planted.run, step).causes[0]
    assert first.cause == cause, first.evidence
    assert first.suspects
    named = [suspect.sample in rows for suspect in first.suspects]
    assert sum(named) > 0.7 * len(named)


@pytest.mark.parametrize("cause", TEXTS)
def test_what_a_document_became_is_named_with_its_samples(documents: Planted, cause: str) -> None:
    assert_named(documents, cause)


@pytest.mark.parametrize("cause", [*PAIRS, "truncated_target"])
def test_what_was_done_to_pairs_is_named_with_its_samples(pairs: Planted, cause: str) -> None:
    assert_named(pairs, cause)


def test_every_cause_that_blames_samples_has_a_fault() -> None:
    # Planted in tests/unit/recorder.
    of_numbers = {"bad_input", "odd_values", "no_targets", "counted_positions"}
    planted = {*TEXTS, *PAIRS, "truncated_target", *of_numbers}
    assert {name for name, rule in rules().items() if rule.blames == "samples"} == planted
