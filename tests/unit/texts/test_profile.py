"""What the texts of a corpus are usually like."""

from odd_texts import sentences

from sonde.texts.densities import repeated_share
from sonde.texts.measures import lay_out, words_in
from sonde.texts.profile import Usual, profile_of

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog"] * 20


def test_text_like_the_corpus_is_less_of_a_surprise() -> None:
    surprise = (
        profile_of(TEXTS)
        .measure(["the cat sat on a log", "zqx wvk jj xqz vvkw qq"])
        .columns["surprise"]
    )
    assert surprise[0] + 2 < surprise[1]


def test_known_words_leave_the_text_itself_out_when_it_was_counted() -> None:
    profile = profile_of(["alpha beta gamma delta", "alpha beta gamma epsilon"] * 1)
    (own,) = profile.measure(["alpha beta gamma delta"], are_own=True).columns["known_words"]
    (other,) = profile.measure(["alpha beta gamma delta"]).columns["known_words"]
    assert own < other


def test_the_languages_of_a_corpus_are_those_of_its_texts() -> None:
    assert profile_of(sentences(1, 60)).languages == ("en",)
    assert profile_of(["12 34", "5 6"] * 9).languages == ()


def test_a_word_has_the_same_hash_wherever_it_stands() -> None:
    words = words_in(lay_out(["The cat", "", "a THE, cat!", "cat"]))
    hashes = words.hashes.tolist()
    assert words.text_of_word.tolist() == [0, 0, 2, 2, 2, 3]
    assert hashes[0] == hashes[3]
    assert hashes[1] == hashes[4] == hashes[5]
    assert len(set(hashes)) == 3


def test_a_number_is_told_in_lengths_of_the_tail() -> None:
    usual = Usual(median=10.0, low=6.0, high=12.0)
    assert usual.above(16.0, 0.1) == 2.0
    assert usual.below(4.0, 0.1) == 0.5
    assert usual.above(16.0, 4.0) == 1.0


def test_the_repeated_share_finds_the_shortest_period() -> None:
    assert repeated_share([7] * 20) == (1.0, 1)
    assert repeated_share([1, 2, 3, 4] * 6) == (1.0, 4)
    assert repeated_share(list(range(40)) * 4) == (1.0, 40)
    assert repeated_share(list(range(20))) == (0.0, 1)
    assert repeated_share(["what", "news", "what", "news"]).share == 0
