from collections import Counter

from sonde.data.tokenizer_hf import byte_alphabet
from sonde.data.unigram import train_unigram

WORDS = Counter({"lower": 20, "lowest": 12, "newer": 15, "wider": 9, "low": 30, "new": 18})


def test_the_alphabet_is_always_there_and_the_size_is_kept() -> None:
    pieces = dict(train_unigram(WORDS, 4 + 256 + 6))
    assert set(byte_alphabet()) <= set(pieces)
    assert len(pieces) == 256 + 6


def test_frequent_words_become_pieces_and_come_first() -> None:
    pieces = train_unigram(WORDS, 4 + 256 + 6)
    assert "low" in dict(pieces)
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)


def test_the_order_of_the_words_does_not_matter() -> None:
    backwards = Counter(dict(reversed(WORDS.items())))
    assert train_unigram(WORDS, 270) == train_unigram(backwards, 270)


def test_no_text_still_gives_the_bytes() -> None:
    assert len(train_unigram(Counter(), 300)) == 256


def test_a_very_long_word_is_no_trouble() -> None:
    assert len(train_unigram(Counter({"ab" * 5000: 3}), 300)) >= 256
