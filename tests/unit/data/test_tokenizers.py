import hashlib
import io
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from sonde.data.tokenizer import BytesTokenizer, Tokenizer, WordTokenizer, dictionary_of_counts
from sonde.data.tokenizer_files import (
    HFTokenizer,
    SentencePieceTokenizer,
    load_tokenizer,
    single_thread,
    train_subwords,
)
from sonde.errors import DamagedFile, SettingError

LINES = [
    f"the {noun} sees a {other} ."
    for noun in ("cat", "dog", "house")
    for other in ("tree", "Straße", "☃")
] * 3


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_subwords("bpe", [LINES], 300)


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return train_subwords("unigram", [LINES], 300)


@pytest.fixture(scope="module")
def sentencepiece_tokenizer() -> Tokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=60,
        model_type="bpe",
        minloglevel=2,
    )
    return SentencePieceTokenizer(model.getvalue())


def rows(tokenizer: Tokenizer, lines: list[str]) -> list[list[int]]:
    encoded = tokenizer.encode_batch(lines)
    return (
        [row.tolist() for row in np.split(encoded.tokens, np.cumsum(encoded.sizes)[:-1])]
        if lines
        else []
    )


@given(st.lists(st.text(), max_size=5))
def test_bytes_give_back_every_text(lines: list[str]) -> None:
    lines = [line.encode(errors="replace").decode() for line in lines]
    tokenizer = BytesTokenizer()
    assert [tokenizer.decode(row) for row in rows(tokenizer, lines)] == lines
    assert all(row[-1] == 2 and row.count(2) == 1 for row in rows(tokenizer, lines))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_trained_subwords_give_back_every_text(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    texts = ["the cat  sees a ☃ .", "", " leading and trailing ", "日本語\ttab", "a\x00b"]
    assert [tokenizer.decode(row) for row in rows(tokenizer, texts)] == texts
    assert (tokenizer.specials.bos, tokenizer.specials.pad, tokenizer.specials.eos) == (0, 1, 2)
    assert tokenizer.vocab_size <= 300
    assert len(rows(tokenizer, ["the cat sees a tree ."])[0]) < 12  # it has learned words


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_training_again_gives_the_same_file_however_the_text_is_cut(
    kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    again = train_subwords(kind, [LINES[:5], LINES[5:]], 300)
    assert again.payload == tokenizer.payload


@pytest.mark.parametrize("kind", ["bpe", "unigram", "sentencepiece_tokenizer", "words"])
def test_a_tokenizer_loaded_from_its_file_is_the_same(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tokenizer: Tokenizer = (
        dictionary_of_counts(Counter(" ".join(LINES).split()))
        if kind == "words"
        else request.getfixturevalue(kind)
    )
    path = tmp_path / tokenizer.file_name
    path.write_bytes(tokenizer.payload)
    loaded = load_tokenizer(path, digest=hashlib.sha256(tokenizer.payload).hexdigest())
    assert (loaded.kind, loaded.vocab_size, loaded.specials) == (
        tokenizer.kind,
        tokenizer.vocab_size,
        tokenizer.specials,
    )
    assert rows(loaded, LINES) == rows(tokenizer, LINES)
    assert all(max(row) < loaded.vocab_size for row in rows(loaded, LINES))


def test_sentencepiece_encodes_and_decodes(sentencepiece_tokenizer: Tokenizer) -> None:
    encoded = rows(sentencepiece_tokenizer, ["the cat sees a tree .", ""])
    assert sentencepiece_tokenizer.decode(encoded[0]) == "the cat sees a tree ."
    assert encoded[1] == [sentencepiece_tokenizer.specials.eos]


def test_a_dictionary_ranks_words_as_fairseq_does_and_fills_up_to_eight() -> None:
    tokenizer = dictionary_of_counts(Counter({"b": 2, "a": 2, "c": 5, "</s>": 9}))
    assert tokenizer.payload == b"c 5\na 2\nb 2\nmadeupword0000 0\n"
    assert tokenizer.words == ["<s>", "<pad>", "</s>", "<unk>", "c", "a", "b", "madeupword0000"]


def test_a_dictionary_is_cut_to_its_size() -> None:
    assert dictionary_of_counts(Counter("aaabbc"), 6).words[4:6] == ["a", "b"]
    with pytest.raises(SettingError, match="no room"):
        dictionary_of_counts(Counter("a"), 4)


def test_every_space_of_unicode_is_a_space() -> None:
    tokenizer = WordTokenizer(b"a 3\nb 2\n")
    spaces = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    assert len(spaces) > 20
    for space in spaces:
        assert rows(tokenizer, [f"a{space}b", "a"]) == [[4, 5, 2], [4, 2]], repr(space)


@given(st.lists(st.text(alphabet=" \t\n\0\x1d\x85\u2028ab</s>é"), max_size=6))
def test_words_are_those_of_str_split(lines: list[str]) -> None:
    tokenizer = WordTokenizer(b"a 3\nb 2\nab 1\n")
    ids = {word: number for number, word in enumerate(tokenizer.words)}
    assert rows(tokenizer, lines) == [
        [*(ids.get(word, 3) for word in line.split()), 2] for line in lines
    ]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"a 1\nnothing\n", "line 2"),
        (b"a 1\na 1\n", "line 2 .* repeats"),
        (b"</s> 1\n", "line 1 .* repeats"),
        (b"\xff 1\n", "not UTF-8"),
    ],
)
def test_a_damaged_dictionary_is_refused_by_line(payload: bytes, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        WordTokenizer(payload)


def test_fairseqs_overwrite_flag_is_obeyed() -> None:
    assert rows(WordTokenizer(b"a 1\nb 1\na 1 #fairseq:overwrite\n"), ["a b"]) == [[6, 5, 2]]


def test_a_changed_tokenizer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_bytes(b"a 1\n")
    with pytest.raises(DamagedFile, match="not the tokenizer"):
        load_tokenizer(tmp_path / "dict.txt", digest="0" * 64)


def test_what_is_no_tokenizer_is_said_to_be_none(tmp_path: Path) -> None:
    for name, content in (("x.json", b"{}"), ("x.model", b"junk"), ("x.txt", b"junk\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DamagedFile, match="x"):
            load_tokenizer(tmp_path / name)
    (tmp_path / "x.bin").touch()
    with pytest.raises(SettingError, match="what kind"):
        load_tokenizer(tmp_path / "x.bin")
    with pytest.raises(SettingError, match="no tokenizer file") as caught:
        load_tokenizer(Path("bpee"))
    assert "did you mean 'bpe'" in str(caught.value)


def test_a_foreign_tokenizer_needs_an_end_of_sequence(bpe: Tokenizer) -> None:
    with pytest.raises(SettingError, match="end-of-sequence"):
        HFTokenizer(bpe.payload.replace(b"</s>", b"<xx>"))


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(SettingError, match="260"):
        train_subwords("bpe", [LINES], 200)


def test_single_thread_puts_the_environment_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    with single_thread():
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    with single_thread():
        pass
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.mark.parametrize("lines", [[], ["ab" * 5000], ["日本"]])
def test_a_unigram_vocabulary_always_has_every_byte_and_keeps_its_size(lines: list[str]) -> None:
    tokenizer = train_subwords("unigram", [lines], 270)
    assert 260 <= tokenizer.vocab_size <= 270
    text = "".join(map(chr, range(300)))
    assert tokenizer.decode(rows(tokenizer, [text])[0]) == text
