"""The tokenizer of a preparation: loaded from a file, or made from the text, the same whatever the number of workers.

A dictionary of words counts all of the text, block by block, in the workers. BPE and unigram look at a bounded sample:
when the text has more than 256 MB, every second block is let go, then every second of the rest, and so on. What was
trained is kept beside the parts under a digest of its text, so that a run started again need not train again.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sonde.data.text_blocks import TextBlock, read_block, split_lines
from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_bytes import BytesTokenizer
from sonde.data.tokenizer_choice import TRAINED, load_tokenizer, train_subwords
from sonde.data.tokenizer_words import count_words, dictionary_of_counts
from sonde.errors import SettingError
from sonde.records.atomic import write_file

SAMPLE_BYTES: Final = 256_000_000
_NO_LIMIT: Final = 1 << 62

R = TypeVar("R")


class RunInOrder(Protocol):
    """Something that applies a function to tasks, in workers, and gives the results in order."""

    def __call__(self, function: Callable[[TextBlock], R], tasks: Iterable[TextBlock], /) -> Iterator[R]:
        """The results."""
        ...


def make_tokenizer(
    choice: str,
    vocab_size: int | None,
    *,
    blocks: Callable[[], Iterable[TextBlock]],
    run: RunInOrder,
    cache: Path,
) -> Tokenizer:
    """The tokenizer that `choice` names: a file, or one of `bpe`, `unigram`, `word`, `bytes`."""
    if choice == "bytes":
        return BytesTokenizer()
    if choice not in TRAINED:
        return load_tokenizer(Path(choice))
    if choice == "word":
        counts: Counter[str] = Counter()
        for found in run(count_block, blocks()):
            counts.update(found)
        return dictionary_of_counts(counts, vocab_size)
    if vocab_size is None:
        raise SettingError(f"{choice} needs a vocabulary size", hint="--vocab-size 10000, for instance")
    sample = sample_blocks(blocks(), SAMPLE_BYTES)
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
