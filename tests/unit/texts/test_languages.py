"""Languages by their little words, scripts by their letters, and letters that stand side by side in
no language.
"""

import math

import pytest

from sonde.texts import languages
from sonde.texts.languages import identify, language_shares, plausible_share, words_of


def test_words_are_runs_of_letters_in_small_letters() -> None:
    assert words_of("Don't PANIC, 42 times_over!") == ["don", "t", "panic", "times", "over"]


def test_the_language_of_a_sentence_has_the_greatest_share() -> None:
    german = language_shares(
        words_of("Der Hund und die Katze sind nicht auf dem Dach, das ist ein Haus")
    )
    assert german[0][0] == "de"
    assert german[0][1] > 0.5


def test_single_letters_are_no_language() -> None:
    assert all(share == 0 for _, share in language_shares(["a", "e", "i", "o", "y", "w"]))


def test_without_a_library_the_script_of_most_letters_tells_the_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(languages, "_identifier", lambda: None)
    assert identify("вгде ab 12")[0] == ("ru", 1.0)
    assert identify("the вг and")[0].language == "en"
    assert identify("12 !?") == []


def test_real_words_are_more_plausible_than_noise() -> None:
    real = plausible_share(
        words_of("the old man carries a letter from the village to the city every morning")
    )
    noise = plausible_share(words_of("tgx qzwv bnkp xrrt vvhq jkdl wpzc mqtb gfxz"))
    assert noise < 0.7 < 0.85 < real
    assert math.isnan(plausible_share(["ab", "c"]))
