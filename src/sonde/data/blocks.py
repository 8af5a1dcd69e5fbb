"""Documents cut or packed into blocks for a language model.

    cut     a block never reaches over the end of its document; the last one of a document is shorter
    pack    documents follow one another (each ends in `eos`), and every block but the last is full

A document is a sequence of the token file, or what a Megatron index calls one. In both modes a block is a zero-copy view,
because the `.bin` holds the documents back to back. `locate` maps a position in a block back to its document.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.samples import Rows, Sample, gather, rows_of_one_dataset
from sonde.data.token_file import TokenFile
from sonde.errors import check_at_least, check_choice


class Place(NamedTuple):
    """Where a token comes from."""

    document: int
    """Number of the document."""
    offset: int
    """Token within it, from 0."""


@final
class BlockDataset:
    """Blocks of at most `block_size` tokens. `blocks[i]` is a `Sample` with only a target."""

    def __init__(self, tokens: TokenFile, block_size: int, *, name: str, mode: Literal["cut", "pack"] = "pack") -> None:
        check_at_least(1, block_size=block_size)
        check_choice(("cut", "pack"), mode=mode)
        self.tokens = tokens
        """The documents."""
        self.block_size = block_size
        """Tokens of a full block."""
        self.name = name
        """How rows and skip lists call it."""
        self.mode = mode
        """How documents become blocks."""
        self.document_starts = _document_starts(tokens)
        """First token of each document in the file, and the end."""
        self._first_blocks: NDArray[np.int64] | None = None
        if mode == "cut":
            num_blocks = -(-np.diff(self.document_starts) // block_size)
            self._first_blocks = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_blocks)])
            self._num_blocks = int(self._first_blocks[-1])
        else:
            self._num_blocks = -(-tokens.num_tokens // block_size)

    def __len__(self) -> int:
        return self._num_blocks

    def __getitem__(self, block: int) -> Sample:
        if not -len(self) <= block < len(self):
            raise IndexError(f"there is no block {block}: there are {len(self)}")
        start, end = self._span(block)
        return Sample(target=self.tokens.flat[start:end], dataset=self.name, sample_id=block % len(self))

    def __getitems__(self, blocks: Sequence[int]) -> Rows:
        """Many blocks at once, by where they lie."""
        numbers = np.asarray(blocks, np.int64)
        return rows_of_one_dataset(self.name, numbers, gather(self.tokens.flat, *self._spans(numbers)))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each block."""
        return self._spans(np.arange(len(self)))[1].astype(np.int32)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The blocks themselves, if they are this dataset's."""
        return samples[samples < len(self)] if dataset == self.name else np.zeros(0, np.int64)

    def locate(self, block: int, position: int) -> Place:
        """The document that a position of a block comes from."""
        start, end = self._span(block)
        token = start + position
        if not start <= token < end:
            raise IndexError(f"block {block} has {end - start} tokens, there is no position {position}")
        document = int(np.searchsorted(self.document_starts, token, side="right")) - 1
        return Place(document, token - int(self.document_starts[document]))

    def boundaries(self, block: int) -> list[int]:
        """Positions of a block where a document begins."""
        start, end = self._span(block)
        low, high = np.searchsorted(self.document_starts[:-1], [start, end])
        return sorted({int(begin) - start for begin in self.document_starts[low:high]})

    def _span(self, block: int) -> tuple[int, int]:
        starts, lengths = self._spans(np.array([range(len(self))[block]]))
        return int(starts[0]), int(starts[0] + lengths[0])

    def _spans(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where blocks begin in the file, and their lengths."""
        if self._first_blocks is None:
            starts = blocks * self.block_size
            ends = np.minimum(starts + self.block_size, self.tokens.num_tokens)
        else:
            documents = np.searchsorted(self._first_blocks, blocks, side="right") - 1
            starts = self.document_starts[documents] + (blocks - self._first_blocks[documents]) * self.block_size
            ends = np.minimum(starts + self.block_size, self.document_starts[documents + 1])
        return starts, ends - starts


def _document_starts(tokens: TokenFile) -> NDArray[np.int64]:
    starts = tokens.pointers // tokens.index.dtype.itemsize
    with_end = np.append(starts, tokens.num_tokens)
    return with_end[tokens.documents] if len(tokens.documents) else with_end
