"""The three kinds of datasets: sentence pairs, blocks of documents for a language model, and mixtures.

In a pair, sample i of one token file is the source and sample i of another the target. Blocks are made in two ways:

    cut     a block never crosses the end of its document; the last one of a document is shorter
    pack    documents follow one another (each ends in `eos`), and every block but the last is full

A document is a sequence of the token file, or a document of a Megatron index. In both modes a block is a zero-copy
view, because the `.bin` stores the documents back to back.

In a mixture, the weight of a dataset is how often each of its samples is seen in an epoch: 1 once, 3 three times, 0.5
half of them once, 1.5 all of them once and half of them twice. Which half depends only on the seed. Nothing is copied:
an index refers to a place in one of the datasets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.batching import epoch_order
from sonde.data.directory import DataDirectory
from sonde.data.samples import Ragged, Rows, Sample, TokenDataset, gather, rows_of_one_dataset
from sonde.data.token_file import TokenFile
from sonde.errors import SettingError, check_at_least, check_choice


def open_pairs(
    data: DataDirectory | Path | str,
    split: str = "train",
    *,
    source: str | None = None,
    target: str | None = None,
    name: str | None = None,
) -> "PairDataset":
    """Open the pairs of a split, named after it, in the direction of its preparation unless languages are given."""
    directory = data if isinstance(data, DataDirectory) else DataDirectory(data)
    languages = directory.languages(split)
    if len(languages) != 2 and (source is None or target is None):
        raise SettingError(f"{split} has {len(languages)} languages, not two: {', '.join(languages)}")
    first, second = source or languages[0], target or languages[1]
    return PairDataset(directory.tokens(split, first), directory.tokens(split, second), name=name or split)


@final
class PairDataset:
    """Two token files side by side. `pairs[i]` is a `Sample` of two zero-copy views."""

    def __init__(self, source: TokenFile, target: TokenFile, *, name: str) -> None:
        if len(source) != len(target):
            raise SettingError(
                f"{source.prefix} has {len(source)} samples and {target.prefix} has {len(target)}",
                hint="prepare both from parallel files in one call of `sonde prepare`",
            )
        self.source = source
        """The token file of the source language."""
        self.target = target
        """The token file of the target language."""
        self.name = name
        """Name of the dataset in rows and skip lists."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, sample: int) -> Sample:
        return Sample(self.target[sample], self.source[sample], self.name, sample % len(self))

    def __getitems__(self, samples: Sequence[int]) -> Rows:
        """Return many samples at once."""
        numbers = np.asarray(samples, np.int64)
        return rows_of_one_dataset(self.name, numbers, self.target.gather(numbers), self.source.gather(numbers))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Source and target lengths of each pair in tokens, (N, 2)."""
        return np.stack([self.source.sizes, self.target.sizes], axis=1)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `samples` if `dataset` is this dataset, and nothing otherwise."""
        return samples[samples < len(self)] if dataset == self.name else np.zeros(0, np.int64)


class Place(NamedTuple):
    """The origin of a token."""

    document: int
    """Number of the document."""
    offset: int
    """Position of the token within the document, starting at 0."""


@final
class BlockDataset:
    """Blocks of at most `block_size` tokens. `blocks[i]` is a `Sample` with only a target."""

    def __init__(self, tokens: TokenFile, block_size: int, *, name: str, mode: Literal["cut", "pack"] = "pack") -> None:
        check_at_least(1, block_size=block_size)
        check_choice(("cut", "pack"), mode=mode)
        self.tokens = tokens
        """The token file of the documents."""
        self.block_size = block_size
        """Tokens of a full block."""
        self.name = name
        """Name of the dataset in rows and skip lists."""
        self.mode = mode
        """How documents become blocks: `cut` or `pack`."""
        self.document_starts = _document_starts(tokens)
        """First token of each document in the file, followed by the end."""
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
        """Return many blocks at once."""
        numbers = np.asarray(blocks, np.int64)
        return rows_of_one_dataset(self.name, numbers, gather(self.tokens.flat, *self._spans(numbers)))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Length of each block in tokens."""
        return self._spans(np.arange(len(self)))[1].astype(np.int32)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `samples` if `dataset` is this dataset, and nothing otherwise."""
        return samples[samples < len(self)] if dataset == self.name else np.zeros(0, np.int64)

    def locate(self, block: int, position: int) -> Place:
        """Return the document and offset that a position of a block comes from."""
        start, end = self._span(block)
        token = start + position
        if not start <= token < end:
            raise IndexError(f"block {block} has {end - start} tokens, there is no position {position}")
        document = int(np.searchsorted(self.document_starts, token, side="right")) - 1
        return Place(document, token - int(self.document_starts[document]))

    def boundaries(self, block: int) -> list[int]:
        """Return the positions in a block where a document begins."""
        start, end = self._span(block)
        low, high = np.searchsorted(self.document_starts[:-1], [start, end])
        return sorted({int(begin) - start for begin in self.document_starts[low:high]})

    def _span(self, block: int) -> tuple[int, int]:
        starts, lengths = self._spans(np.array([range(len(self))[block]]))
        return int(starts[0]), int(starts[0] + lengths[0])

    def _spans(self, blocks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where blocks begin in the file, and their lengths."""
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


@final
@dataclass(frozen=True, slots=True)
class _Component:
    """One dataset of a mixture."""

    name: str
    dataset: TokenDataset
    num_whole: int
    """How often the whole dataset is seen."""
    some: NDArray[np.int64]
    """Samples that are seen once more."""

    def __len__(self) -> int:
        return self.num_whole * len(self.dataset) + len(self.some)

    def samples(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample at each place."""
        num_whole = self.num_whole * len(self.dataset)
        result = places % max(1, len(self.dataset))
        extra = places >= num_whole
        result[extra] = self.some[places[extra] - num_whole]
        return result


@final
class MixtureDataset:
    """A weighted mixture. `parts` maps each name to a dataset and its weight."""

    def __init__(self, parts: Mapping[str, tuple[TokenDataset, float]], *, seed: int = 1) -> None:
        if not parts:
            raise SettingError("a mixture needs at least one dataset")
        self._components = tuple(_component(name, *part, seed=seed) for name, part in parts.items())
        self._bounds = np.cumsum([0, *(len(component) for component in self._components)])
        shapes = {component.dataset.lengths.ndim for component in self._components}
        if len(shapes) > 1:
            raise SettingError("pairs and single sequences do not mix: a batch has a source or it has none")

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Return many samples at once, each from its dataset."""
        places = np.asarray(indices, np.int64)
        which = np.searchsorted(self._bounds, places, side="right") - 1
        # Each dataset returns its rows together; `order` restores the requested order.
        order = np.argsort(np.argsort(which, kind="stable"))
        found = []
        for number in np.unique(which).tolist():
            component = self._components[number]
            samples = component.samples(places[which == number] - self._bounds[number])
            found.append(component.dataset.__getitems__(samples.tolist()))
        sources = [rows.source for rows in found if rows.source is not None]
        return Rows(
            target=_joined([rows.target for rows in found]).reordered(order),
            source=_joined(sources).reordered(order) if sources else None,
            names=tuple(component.name for component in self._components),
            dataset_of_row=which.astype(np.int32),
            sample_ids=np.concatenate([rows.sample_ids for rows in found])[order],
            weights=np.concatenate([rows.weights for rows in found])[order],
        )

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Length of each sample in tokens, as its dataset reports it."""
        found = []
        for component in self._components:
            lengths = component.dataset.lengths
            found.append(lengths[component.samples(np.arange(len(component)))])
        return np.concatenate(found)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every place where one of the samples occurs."""
        found = [np.zeros(0, np.int64)]
        for component, first in zip(self._components, self._bounds.tolist(), strict=False):
            if component.name == dataset:
                own = component.samples(np.arange(len(component)))
                found.append(first + np.flatnonzero(np.isin(own, samples)))
        return np.concatenate(found)


def _component(name: str, dataset: TokenDataset, weight: float, *, seed: int) -> _Component:
    if not weight > 0:
        raise SettingError(f"the weight of {name} must be above 0, not {weight}")
    num_whole = int(weight)
    num_some = round((weight - num_whole) * len(dataset))
    some = np.sort(epoch_order(len(dataset), seed=seed, epoch=0)[:num_some])
    return _Component(name, dataset, num_whole, some)


def _joined(sides: list[Ragged]) -> Ragged:
    return Ragged(*map(np.concatenate, zip(*sides, strict=True)))
