"""Which tokenizer: a file someone has, or one trained on the corpus at hand.

bpe, unigram    trained by `train_tokenizer` on the text (tokenizer_hf.py, unigram.py)
word            a dictionary of the text's words (tokenizer_words.py)
bytes           nothing to train
FILE            by its name: *.json is Hugging Face's, *.model SentencePiece's, *.txt a fairseq dictionary
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_bytes import PAYLOAD, BytesTokenizer
from sonde.data.tokenizer_hf import HFTokenizer, check_vocab_size, train_bpe, unigram_of_pieces
from sonde.data.tokenizer_sentencepiece import SentencePieceTokenizer
from sonde.data.tokenizer_words import WordTokenizer
from sonde.data.unigram import count_byte_words, train_unigram
from sonde.errors import DamagedFile, SettingError, nearest
from sonde.records.files import read_small

_MAX_TOKENIZER_BYTES: Final = 1 << 30
TRAINED: Final = ("bpe", "unigram", "word", "bytes")
"""Names that stand for a tokenizer made here."""


def load_tokenizer(path: str | Path, *, digest: str | None = None) -> Tokenizer:
    """The tokenizer in a file; with `digest`, only if the file is the one that has it."""
    path = Path(path)
    try:
        payload = read_small(path, max_bytes=_MAX_TOKENIZER_BYTES, follow=True)
    except FileNotFoundError:
        close = nearest(str(path), TRAINED)
        raise SettingError(
            f"there is no tokenizer file {path}",
            hint=f"did you mean {close}?" if close else f"or name one to make: {', '.join(TRAINED)}",
        ) from None
    found = hashlib.sha256(payload).hexdigest()
    if digest is not None and found != digest:
        raise DamagedFile(
            f"{path} is not the tokenizer the data was made with",
            cause=f"its SHA-256 is {found[:12]}…, the data says {digest[:12]}…",
        )
    if payload == PAYLOAD:
        return BytesTokenizer()
    kinds: dict[str, Callable[[bytes], Tokenizer]] = {
        ".json": HFTokenizer,
        ".model": SentencePieceTokenizer,
        ".txt": WordTokenizer,
    }
    if path.suffix not in kinds:
        raise SettingError(
            f"what kind of tokenizer is {path}?",
            hint="*.json is a Hugging Face tokenizer, *.model a SentencePiece model, *.txt a fairseq dictionary",
        )
    try:
        return kinds[path.suffix](payload)
    except DamagedFile as error:
        raise DamagedFile(f"{path}: {error.message}", cause=error.cause, hint=error.hint) from None


def train_subwords(kind: str, blocks: Iterable[Sequence[str]], vocab_size: int) -> Tokenizer:
    """A tokenizer of `kind` "bpe" or "unigram", trained on blocks of lines. The same text gives the same file."""
    check_vocab_size(vocab_size)
    if kind == "bpe":
        return train_bpe((line for lines in blocks for line in lines), vocab_size)
    return unigram_of_pieces(train_unigram(count_byte_words(blocks), vocab_size))
