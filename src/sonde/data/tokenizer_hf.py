"""Hugging Face `tokenizers`: any `tokenizer.json`, or one trained here on the corpus.

What sonde trains works on bytes (the GPT-2 alphabet): it knows every text and gives it back as it was, white space and
all. BPE training is deterministic as it is: the same text gives the same file. The library's unigram trainer is not
(it sums over a hash map in an order that changes from process to process), so that unigram.py does that work.

The library starts a thread per core inside `encode_batch`. In a worker that is one of several that would only make them
fight: `single_thread` turns it off for a while.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.tokenizer import SPECIAL_WORDS, Encoded, SpecialIds, join_ids
from sonde.errors import DamagedFile, MissingDependency, SettingError

FILE_NAME: Final = "tokenizer.json"
_SWITCH: Final = "TOKENIZERS_PARALLELISM"
_LINES_AT_ONCE: Final = 128
_NUM_BYTES: Final = 256
_EOS: Final = ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "[SEP]")
_PAD: Final = ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>")
_BOS: Final = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]")
_UNK: Final = ("<unk>", "[UNK]", "<|unk|>")


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Within the block the library uses the calling thread only."""
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def train_bpe(lines: Iterable[str], vocab_size: int) -> "HFTokenizer":
    """A byte-level BPE of `vocab_size` ids, specials included. The same lines give the same file."""
    check_vocab_size(vocab_size)
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_WORDS),
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    _set_bytes(tokenizer, library)
    tokenizer.train_from_iterator(lines, trainer)
    return HFTokenizer(tokenizer.to_str().encode())


def unigram_of_pieces(pieces: Sequence[tuple[str, float]]) -> "HFTokenizer":
    """A byte-level unigram tokenizer with these pieces and log probabilities, the specials in front."""
    library = _library()
    vocab = [(word, 0.0) for word in SPECIAL_WORDS] + list(pieces)
    tokenizer = library.Tokenizer(library.models.Unigram(vocab, SPECIAL_WORDS.index("<unk>"), False))
    tokenizer.add_special_tokens(list(SPECIAL_WORDS))
    _set_bytes(tokenizer, library)
    return HFTokenizer(tokenizer.to_str().encode())


def split_words(lines: Sequence[str]) -> list[str]:
    """The words of the lines, in the byte alphabet: what no token reaches across."""
    splitter = _library().pre_tokenizers.ByteLevel(add_prefix_space=False)
    return [word for line in lines for word, _ in splitter.pre_tokenize_str(line)]


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes, in a fixed order."""
    return sorted(_library().pre_tokenizers.ByteLevel.alphabet())


def check_vocab_size(vocab_size: int) -> None:
    """A byte vocabulary needs its bytes and the specials."""
    smallest = _NUM_BYTES + len(SPECIAL_WORDS)
    if vocab_size < smallest:
        raise SettingError(
            f"a vocabulary of {vocab_size} is too small", hint=f"the bytes and the specials alone take {smallest}"
        )


@final
class HFTokenizer:
    """A `tokenizer.json`; `payload` is that file."""

    kind: Final = "hf"
    file_name: Final = FILE_NAME

    def __init__(self, payload: bytes) -> None:
        library = _library()
        self.payload = payload
        try:
            self._tokenizer: Any = library.Tokenizer.from_str(payload.decode())
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for what it cannot parse
            raise DamagedFile("this is not a tokenizer.json", cause=str(error)) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.specials = _find_specials(self._tokenizer.get_vocab(with_added_tokens=True))

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def words(self) -> list[str]:
        """Every id's word, in the order of ids."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        return sorted(ids, key=ids.__getitem__)

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The ids of every line, each with its `eos`; templates of the file (such as [CLS] … [SEP]) are not applied."""
        eos = self.specials.eos
        parts = []
        for first in range(0, len(lines), _LINES_AT_ONCE):  # few at once stay in the cache: 1.3 times faster than 2048
            batch = list(lines[first : first + _LINES_AT_ONCE])
            found = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            parts.append(join_ids([encoding.ids for encoding in found], eos))
        if len(parts) == 1:
            return parts[0]
        nothing = [np.zeros(0, np.int32)]
        return Encoded(
            np.concatenate([part.tokens for part in parts] or nothing),
            np.concatenate([part.sizes for part in parts] or nothing),
        )

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The text."""
        return str(self._tokenizer.decode(np.asarray(tokens).tolist(), skip_special_tokens=True))


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingDependency("tokenizers", needed_for="a Hugging Face tokenizer", extra="text") from None
    return tokenizers


def _set_bytes(tokenizer: Any, library: Any) -> None:
    # No space in front of the first word: then decoding gives back exactly what was encoded.
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()


def _find_specials(vocab: Mapping[str, int]) -> SpecialIds:
    def first(names: Sequence[str]) -> int | None:
        return next((vocab[name] for name in names if name in vocab), None)

    eos = first(_EOS)
    if eos is None:
        raise SettingError(
            "the tokenizer has no end-of-sequence token", hint=f"it needs one of {', '.join(_EOS)} in its vocabulary"
        )
    pad, bos = first(_PAD), first(_BOS)
    return SpecialIds(bos=eos if bos is None else bos, pad=eos if pad is None else pad, eos=eos, unk=first(_UNK))
