"""The same text again in a batch."""

import random

from sonde.forensics.causes.duplicated_text import near_repeats_within, repeats_within


def row(seed: int, length: int = 64) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(1000) for _ in range(length)]


def test_samples_that_say_the_same_are_found() -> None:
    same = row(1)
    assert repeats_within([row(2), same, row(3), same]) == (0.5, (1, 3), 2)


def test_a_copy_that_begins_elsewhere_is_still_one() -> None:
    text = row(1, 128)
    found = repeats_within([text[:64], text[2:66], row(5)])
    assert found.rows == (0, 1)


def test_a_shared_quotation_is_no_copy() -> None:
    quotation = row(9, 20)
    assert repeats_within([[*quotation, *row(1, 44)], [*quotation, *row(2, 44)]]).rows == ()


def test_short_samples_must_share_most_of_themselves() -> None:
    shared = row(4, 8)
    assert repeats_within([[*shared, *row(1, 8)], [*shared, *row(2, 8)]]).rows == ()
    assert repeats_within([row(3, 16), row(3, 16)]).rows == (0, 1)


def changed(tokens: list[int], every: int) -> list[int]:
    return [-place if place % every == 1 else token for place, token in enumerate(tokens)]


def test_copies_with_a_few_other_tokens_are_near_copies() -> None:
    rows = [row(2), row(1), changed(row(1), every=10), row(3)]
    assert repeats_within(rows).rows == ()
    assert near_repeats_within(rows) == (0.5, (1, 2), 2)


def test_texts_that_share_less_than_half_are_no_near_copies() -> None:
    assert near_repeats_within([row(1), changed(row(1), every=4)]).rows == ()
    assert near_repeats_within([[1, 2, 3, 4], [1, 2, 3, 4]]).rows == ()
