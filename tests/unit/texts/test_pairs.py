"""Signs of a pair: copied, swapped, truncated and mismatched pairs are told apart; a good
translation is left alone.
"""

import random

import pytest
from odd_texts import parallel_texts

from sonde.texts import pairs
from sonde.texts.pairs import PairProfile, find_pair_signs, find_signs_of_pairs, pair_profile_of
from sonde.texts.signs import CLEAR, FOREIGN_LANGUAGE


@pytest.fixture(scope="module")
def profile() -> PairProfile:
    sources, targets = zip(*parallel_texts(1, 300), strict=True)
    return pair_profile_of(sources, targets)


def test_good_pairs_have_no_sign(profile: PairProfile) -> None:
    sources, targets = zip(*parallel_texts(2, 100), strict=True)
    assert all(
        not [*reading.pair, *reading.source, *reading.target]
        for reading in find_signs_of_pairs(sources, targets, profile)
    )


SOURCE, TARGET = parallel_texts(3, 1)[0]


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        (pairs.COPIED, SOURCE, SOURCE),
        (pairs.COPIED, SOURCE, SOURCE.lower().rstrip(".")),
        (pairs.SWAPPED, TARGET, SOURCE),
        (pairs.TRUNCATED, SOURCE, "Der alte"),
        (pairs.TRUNCATED, "The old", TARGET),
        (pairs.MISMATCHED, SOURCE, f"{TARGET} {TARGET} {TARGET}"),
        (
            pairs.MISMATCHED,
            "In 1812 there were 250 houses and 13 bridges.",
            "Im Jahr 1975 gab es 4 Häuser und 88 Brücken.",
        ),
    ],
)
def test_a_bad_pair_is_named(profile: PairProfile, kind: str, source: str, target: str) -> None:
    reading = find_pair_signs(source, target, profile)
    assert reading.pair[0].kind == kind
    assert reading.pair[0].strength >= CLEAR
    assert FOREIGN_LANGUAGE not in {sign.kind for sign in (*reading.source, *reading.target)}


def test_a_target_in_the_source_language_that_is_no_copy_is_foreign(profile: PairProfile) -> None:
    reading = find_pair_signs(SOURCE, parallel_texts(9, 1)[0][0], profile)
    assert reading.target[0].kind == FOREIGN_LANGUAGE
    assert not reading.source


def test_copies_are_no_sign_where_copies_are_normal() -> None:
    copies = [(source, source) for source, _ in parallel_texts(4, 100)]
    profile = pair_profile_of(*zip(*copies, strict=True))
    assert not find_pair_signs(*copies[0], profile).pair


def test_a_target_that_belongs_to_another_source_is_mismatched() -> None:
    things = [
        f"{beginning}{two}"
        for beginning in ("bal", "kor", "mid", "run", "tas", "ved", "zol", "pim")
        for two in ("an", "er", "is", "or", "ek", "us")
    ]
    generator = random.Random(5)
    chosen = [generator.sample(things, 6) for _ in range(1200)]
    sources = [f"the {' and '.join(words)}." for words in chosen]
    targets = [f"der {' und '.join(word[::-1] + 'chen' for word in words)}." for words in chosen]
    profile = pair_profile_of(sources[200:], targets[200:])
    good = find_signs_of_pairs(sources[:200], targets[:200], profile)
    bad = find_signs_of_pairs(sources[:199], targets[1:200], profile)
    assert sum(bool(reading.pair) for reading in good) <= 2
    assert (
        sum(reading.pair[:1] != [] and reading.pair[0].kind == pairs.MISMATCHED for reading in bad)
        > 150
    )
