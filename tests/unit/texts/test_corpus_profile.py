"""What texts usually are like, and how far a number is from many others."""

import math

from sonde.spread import Spread
from sonde.texts.corpus_profile import profile_of

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog"] * 10


def test_text_like_the_corpus_is_less_of_a_surprise() -> None:
    profile = profile_of(TEXTS)
    assert profile.surprise("the cat sat") < 3 < 5 < profile.surprise("zqx wvk jj")
    assert math.isnan(profile.surprise("x"))


def test_known_words_leave_the_text_itself_out_when_it_was_counted() -> None:
    profile = profile_of(["alpha beta", "beta gamma"])
    assert profile.known_words("alpha beta") == 1.0
    assert profile.known_words("alpha beta", is_own=True) == 0.5
    assert math.isnan(profile.known_words("12 34"))


def test_the_language_of_a_corpus_is_that_of_its_little_words() -> None:
    assert profile_of(TEXTS).language == "English"
    assert profile_of(["zqx wvk"] * 3).language == ""


def test_a_spread_is_not_moved_by_a_few_outliers() -> None:
    spread = Spread([*(float(one) for one in range(100)), 1e9, 1e9, math.nan])
    assert spread.median == 51
    assert 30 < spread.deviation < 45
    assert spread.share_below(51) == 0.5
    assert 8 < spread.z(400.0) < 11
    assert math.isnan(spread.z(math.inf))


def test_values_that_are_all_alike_still_have_a_deviation() -> None:
    spread = Spread([2.0] * 10)
    assert spread.deviation == 0.02
    assert math.isnan(Spread([]).median)
