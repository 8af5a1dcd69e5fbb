"""Every cause has a title and advice."""

import pytest

from sonde.forensics.cause_texts import make_cause
from sonde.forensics.verdict import CAUSES, GARBLED_TEXT, LEARNING_RATE


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_a_sentence_and_advice_about_the_step(name: str) -> None:
    made = make_cause(name, 0.5, ["because"], step=77)
    assert made.title.endswith(".")
    assert made.advice
    assert not any("{step}" in one for one in made.advice)
    assert made.evidence == ("because",)


def test_nothing_is_quite_sure_and_nothing_quite_impossible() -> None:
    assert make_cause(GARBLED_TEXT, 2.0, [], step=1).confidence == 0.99
    assert make_cause(GARBLED_TEXT, -1.0, [], step=1).confidence == 0.01


def test_what_a_cause_points_at_is_kept() -> None:
    made = make_cause(LEARNING_RATE, 0.5, [], step=1, title="It may be too high.", setting="lr", module="m", rank=3)
    assert (made.title, made.setting, made.module, made.rank) == ("It may be too high.", "lr", "m", 3)
