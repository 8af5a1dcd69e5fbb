"""The tokenizer of a preparation: loaded from a file, or made from the text, the same whatever the number of workers.

    bpe, unigram    trained on the text (tokenizer_subwords.py)
    word            a dictionary of the text's words (tokenizer_words.py)
    bytes           nothing to train
    FILE            by its name: *.json is Hugging Face's, *.model SentencePiece's, *.txt a fairseq dictionary

A dictionary of words counts all of the text, block by block, in the workers. BPE and unigram train on a bounded sample: when the
text has more than 256 MB, every second block is dropped, then every second of the rest, and so on. The trained file is kept beside
the parts under a digest of its text, so that a run started again need not train again.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from sonde.data.text_blocks import TextBlock, read_block, split_lines
from sonde.data.tokenizer import BytesTokenizer, Tokenizer
from sonde.data.tokenizer_subwords import HFTokenizer, SentencePieceTokenizer, train_subwords
from sonde.data.tokenizer_words import WordTokenizer, count_words, dictionary_of_counts
from sonde.data.workers import in_order
from sonde.errors import DamagedFile, SettingError, did_you_mean
from sonde.records.atomic import write_file
from sonde.records.files import read_small

TRAINED: Final = ("bpe", "unigram", "word", "bytes")
"""Names that stand for a tokenizer made here."""
SAMPLE_BYTES: Final = 256_000_000
_MAX_TOKENIZER_BYTES: Final = 1 << 30
_NO_LIMIT: Final = 1 << 62


def load_tokenizer(path: str | Path, *, digest: str | None = None) -> Tokenizer:
    """The tokenizer in a file; with `digest`, only if the file is the one that has it."""
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
            hint="*.json is a Hugging Face tokenizer, *.model a SentencePiece model, *.txt a fairseq dictionary",
        )
    try:
        return kinds[path.suffix](payload)
    except DamagedFile as error:
        raise DamagedFile(f"{path}: {error.message}", cause=error.cause, hint=error.hint) from None


def make_tokenizer(
    choice: str,
    vocab_size: int | None,
    blocks: Iterable[TextBlock],
    *,
    executor: Executor | None,
    num_under_way: int,
    cache: Path,
) -> Tokenizer:
    """The tokenizer that `choice` names: a file, or one of `bpe`, `unigram`, `word`, `bytes`."""
    if choice == "bytes":
        return BytesTokenizer()
    if choice not in TRAINED:
        return load_tokenizer(Path(choice))
    if choice == "word":
        counts: Counter[str] = Counter()
        for found in in_order(executor, count_block, blocks, num_under_way=num_under_way):
            counts.update(found)
        return dictionary_of_counts(counts, vocab_size)
    if vocab_size is None:
        raise SettingError(f"{choice} needs a vocabulary size", hint="--vocab-size 10000, for instance")
    sample = sample_blocks(blocks, SAMPLE_BYTES)
    digest = hashlib.sha256(f"{choice} {vocab_size}\n".encode())
    for content in sample:
        digest.update(content)
    trained = cache / f"{digest.hexdigest()[:40]}.json"
    if not trained.exists():
        lines = (split_lines(content, _NO_LIMIT).lines for content in sample)
        write_file(trained, train_subwords(choice, lines, vocab_size).payload)
    return load_tokenizer(trained)


def count_block(block: TextBlock) -> Counter[str]:
    """The words of one block."""
    return count_words(split_lines(read_block(block), _NO_LIMIT).lines)


def sample_blocks(blocks: Iterable[TextBlock], max_bytes: int) -> list[bytes]:
    """All blocks if they have at most `max_bytes`; else every second, fourth, … of them, so that they do."""
    kept: list[bytes] = []
    stride, num_bytes = 1, 0
    for number, block in enumerate(blocks):
        if number % stride:
            continue
        content = read_block(block)
        kept.append(content)
        num_bytes += len(content)
        while num_bytes > max_bytes and len(kept) > 1:
            kept = kept[::2]
            stride *= 2
            num_bytes = sum(map(len, kept))
    return kept
