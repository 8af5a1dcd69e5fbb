"""Tokenizers with a library behind them, their training, and loading of any tokenizer from its
file.

    *.json  Hugging Face      *.model  SentencePiece      *.txt  a fairseq dictionary

Tokenizers trained by sonde work on bytes (the GPT-2 alphabet): they can encode every text and
decode it exactly. The same text gives the same file, whatever the number of workers. That is why
unigram pieces come from SentencePiece's trainer with one thread: the trainer of `tokenizers` sums
over a hash map in an order that differs between processes.
"""

import contextlib
import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sonde.data.tokenizer import (
    SPECIAL_WORDS,
    BytesTokenizer,
    Ragged,
    SpecialIds,
    Tokenizer,
    WordTokenizer,
    encode_in_chunks,
    join_ids,
)
from sonde.errors import DamagedFile, SettingError, did_you_mean, import_extra
from sonde.records.files import read_small

_SWITCH: Final = "TOKENIZERS_PARALLELISM"
_CHUNK_LINES: Final = 128
"""Lines per chunk; 1.3 times faster than 2048."""
_MAX_WORD: Final = 1000
"""Longer words are split before training; SentencePiece would leave them out."""
_UNSEEN: Final = -25.0
"""Log-probability of a byte that does not occur in the text."""
_EOS: Final = ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "[SEP]")
_PAD: Final = ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>")
_BOS: Final = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]")
_UNK: Final = ("<unk>", "[UNK]", "<|unk|>")
TRAINED: Final = ("bpe", "unigram", "word", "bytes")
"""Names of the tokenizers that can be trained here."""
_MAX_TOKENIZER_BYTES: Final = 1 << 30


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Keep `tokenizers` on the calling thread. By default it starts a thread per core in every
    worker.
    """
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "false"
    try:
        yield
    finally:
        os.environ.pop(_SWITCH, None)  # threads may share it
        if before is not None:
            os.environ[_SWITCH] = before


def train_subwords(kind: str, blocks: Iterable[Sequence[str]], vocab_size: int) -> "HFTokenizer":
    """Train a byte-level tokenizer of `kind` "bpe" or "unigram" on blocks of lines. `vocab_size`
    includes the special ids.
    """
    library = _tokenizers()
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIAL_WORDS)
    if vocab_size < smallest:
        raise SettingError(
            f"a vocabulary of {vocab_size} is too small",
            hint=f"the bytes and the special ids alone take {smallest}",
        )
    # No space before the first word, so that decoding returns exactly what was encoded.
    splitter = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = (line for block in blocks for line in block)
    if kind == "unigram":
        words = Counter(word for line in lines for word, _ in splitter.pre_tokenize_str(line))
        pieces = [
            *((word, 0.0) for word in SPECIAL_WORDS),
            *_train_unigram(words, alphabet, vocab_size - smallest),
        ]
        tokenizer = library.Tokenizer(
            library.models.Unigram(pieces, SPECIAL_WORDS.index("<unk>"), False)
        )
        tokenizer.add_special_tokens(list(SPECIAL_WORDS))
    else:
        tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = library.decoders.ByteLevel()
    if kind == "bpe":
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_WORDS),
            initial_alphabet=alphabet,
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
    return HFTokenizer(tokenizer.to_str().encode())


def _train_unigram(
    words: Mapping[str, int], alphabet: Sequence[str], num_longer: int
) -> list[tuple[str, float]]:
    """Return the letters of the alphabet and at most `num_longer` longer pieces, with
    log-probabilities.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for first in range(0, len(word), _MAX_WORD):
            counts[word[first : first + _MAX_WORD]] += count
    letters = {letter for word in counts for letter in word}
    found: dict[str, float] = {}
    if counts:
        library = _sentencepiece("training a unigram tokenizer")
        model = io.BytesIO()
        library.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(counts.items())),
            input_format="tsv",
            model_writer=model,
            vocab_size=1 + len(letters) + num_longer,  # one for its own <unk>
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            split_by_unicode_script=False,
            split_by_number=False,
            num_threads=1,
            minloglevel=2,
            bos_id=-1,
            eos_id=-1,
        )
        trained = library.SentencePieceProcessor(model_proto=model.getvalue())
        found = {
            trained.id_to_piece(piece): trained.get_score(piece)
            for piece in range(1, trained.vocab_size())
        }
    return [*found.items(), *((letter, _UNSEEN) for letter in alphabet if letter not in found)]


class HFTokenizer:
    """A Hugging Face tokenizer; `payload` is its `tokenizer.json`."""

    kind: Final = "hf"
    file_name: Final = "tokenizer.json"

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        library = _tokenizers()
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(payload.decode())
        except Exception as error:  # noqa: BLE001
            # - the library raises bare Exception for what it cannot parse
            raise DamagedFile("this is not a tokenizer.json", cause=str(error)) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.words: list[str] = sorted(ids, key=ids.__getitem__)
        """The word of each id."""
        self.vocab_size = len(ids)
        """Number of ids, including added tokens."""
        self.specials = _find_specials(ids)

    def encode_batch(self, lines: Sequence[str]) -> Ragged:
        """Return the ids of every line, each with its `eos`.

        Templates of the file (such as [CLS] … [SEP]) are not applied.
        """
        return encode_in_chunks(self._encode, lines, _CHUNK_LINES)

    def _encode(self, lines: Sequence[str]) -> Ragged:
        found = self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        return join_ids([encoding.ids for encoding in found], self.specials.eos)

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """Return the text."""
        return str(self._tokenizer.decode(np.asarray(tokens).tolist(), skip_special_tokens=True))


class SentencePieceTokenizer:
    """A trained SentencePiece model; `payload` is its `.model` file."""

    kind: Final = "sentencepiece"
    file_name: Final = "tokenizer.model"

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._model: Any = _sentencepiece("a SentencePiece model").SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(payload)
        except RuntimeError as error:
            raise DamagedFile("this is not a SentencePiece model", cause=str(error)) from None
        eos = self._model.eos_id()
        pad = self._model.pad_id()
        bos = self._model.bos_id()
        if eos < 0:
            raise DamagedFile(
                "the SentencePiece model has no end-of-sequence id",
                hint="train it with eos_id >= 0",
            )
        # SentencePiece has no `pad` by default. Nothing here compares tokens with it, so `eos` can
        # take its place.
        self.specials = SpecialIds(
            bos=bos if bos >= 0 else eos,
            pad=pad if pad >= 0 else eos,
            eos=eos,
            unk=self._model.unk_id(),
        )
        self.vocab_size = int(self._model.vocab_size())
        """Number of ids."""

    def encode_batch(self, lines: Sequence[str]) -> Ragged:
        """Return the ids of every line, each with its `eos`.

        Uses one thread, since the workers already run in parallel.
        """
        return join_ids(
            self._model.encode(list(lines), out_type=int, num_threads=1), self.specials.eos
        )

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """Return the text."""
        left_out = (self.specials.bos, self.specials.pad, self.specials.eos)
        return str(
            self._model.decode(
                [token for token in np.asarray(tokens).tolist() if token not in left_out]
            )
        )


def _tokenizers() -> Any:
    return import_extra("tokenizers", needed_for="a Hugging Face tokenizer", extra="text")


def _sentencepiece(purpose: str) -> Any:
    return import_extra("sentencepiece", needed_for=purpose, extra="sentencepiece")


def _find_specials(ids: Mapping[str, int]) -> SpecialIds:
    def first_of(names: Sequence[str]) -> int | None:
        return next((ids[name] for name in names if name in ids), None)

    bos = first_of(_BOS)
    pad = first_of(_PAD)
    eos = first_of(_EOS)
    if eos is None:
        raise SettingError(
            "the tokenizer has no end-of-sequence token",
            hint=f"it needs one of {', '.join(_EOS)} in its vocabulary",
        )
    return SpecialIds(
        bos=eos if bos is None else bos,
        pad=eos if pad is None else pad,
        eos=eos,
        unk=first_of(_UNK),
    )


def load_tokenizer(path: str | Path, *, digest: str | None = None) -> Tokenizer:
    """Load a tokenizer from a file. With `digest`, raises if the file has another one.

    ```python
    from pathlib import Path

    from sonde.data import PrepareSettings, load_tokenizer, prepare

    Path("corpus.txt").write_text("a few words\\n" * 200)
    splits = {"train": {"en": Path("corpus.txt")}}
    prepare(PrepareSettings(splits=splits, out=Path("data"), vocab_size=300))
    tokenizer = load_tokenizer("data/tokenizer.json")
    ```
    """
    path = Path(path)
    try:
        payload = read_small(path, max_bytes=_MAX_TOKENIZER_BYTES, follow=True)
    except FileNotFoundError:
        raise SettingError(
            f"there is no tokenizer file {path}",
            hint=did_you_mean(str(path), TRAINED, f"or name one to make: {', '.join(TRAINED)}"),
        ) from None
    found = hashlib.sha256(payload).hexdigest()
    if digest is not None and found != digest:
        raise DamagedFile(
            f"{path} is not the tokenizer the data was made with",
            cause=f"its SHA-256 is {found[:12]}…, the data says {digest[:12]}…",
        )
    if payload == BytesTokenizer.payload:
        return BytesTokenizer()
    kinds: dict[str, Callable[[bytes], Tokenizer]] = {
        ".json": HFTokenizer,
        ".model": SentencePieceTokenizer,
        ".txt": WordTokenizer,
    }
    if path.suffix not in kinds:
        raise SettingError(
            f"what kind of tokenizer is {path}?",
            hint=(
                "*.json is a Hugging Face tokenizer, *.model a SentencePiece model, *.txt a fairseq"
                " dictionary"
            ),
        )
    try:
        return kinds[path.suffix](payload)
    except DamagedFile as error:
        raise DamagedFile(f"{path}: {error.message}", cause=error.cause, hint=error.hint) from None
