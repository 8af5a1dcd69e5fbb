"""Duplicates of a corpus: the same text, nearly the same text, and texts that only look alike."""

import random

import numpy as np

from sonde.texts.fingerprints import DuplicateFinder, Match, fingerprints_of

_WORDS = [
    f"{start}{end}"
    for start in ("ba", "ko", "mi", "ru", "ta", "ve", "zo", "pi")
    for end in ("lan", "mer", "nis", "tor", "vek", "dus")
]


def texts(seed: int, num: int, size: int = 30) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choice(_WORDS) for _ in range(size)) for _ in range(num)]


def matches(*batches: list[str], least: float = 0.8) -> list[Match]:
    with DuplicateFinder(least=least) as finder:
        for batch in batches:
            finder.add(fingerprints_of(batch))
        return sorted(finder.matches())


def test_the_same_text_is_found_in_another_part_of_the_corpus() -> None:
    one = texts(1, 300)
    other = texts(2, 300)
    assert matches(one, [*other, one[17], f"  {one[18]}\n"]) == [
        Match(600, 17, 1.0),
        Match(601, 18, 1.0),
    ]


def test_a_text_with_a_changed_word_is_nearly_the_same() -> None:
    corpus = texts(3, 300, size=60)
    changed = corpus[5].split()
    changed[40] = "other"
    (found,) = matches([*corpus, " ".join(changed)])
    assert (found.text, found.earlier) == (300, 5)
    assert 0.8 <= found.similarity < 1


def test_texts_that_differ_in_their_numbers_are_not_the_same() -> None:
    assert (
        matches(
            [
                f"room {number} floor {number + 7} has {number * 3} seats and {number * 5} windows"
                for number in range(50)
            ]
        )
        == []
    )


def test_similarity_is_the_part_of_runs_that_two_texts_share() -> None:
    words = texts(4, 1, size=400)[0].split()
    minima = fingerprints_of([" ".join(words[:300]), " ".join(words[100:])]).minima
    assert abs(float(np.mean(minima[0] == minima[1])) - 0.5) < 0.2


def test_short_and_empty_texts_are_only_compared_as_a_whole() -> None:
    assert matches(["yes sir", "Yes sir", "", "", "…", "…"]) == []
    assert matches(["yes sir", "yes sir"]) == [Match(1, 0, 1.0)]
    assert matches([]) == []


def test_a_text_with_other_punctuation_is_nearly_the_same_and_not_the_same() -> None:
    (text,) = texts(6, 1)
    assert matches([text, f"{text.upper()}!"]) == [Match(1, 0, 0.99)]
