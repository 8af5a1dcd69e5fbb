"""Datasets: sentence pairs, blocks of documents for a language model, and mixtures; their samples,
and many rows at once.

In a pair, sample i of one token file is the source and sample i of another the target. Blocks are
made in two ways:

    cut     a block never crosses the end of its document; the last one of a document is shorter
    pack    documents follow one another (each ends in `eos`), and every block but the last is full

A document is a sequence of the token file, or a document of a Megatron index. In both modes a block
is a zero-copy view, because the `.bin` stores the documents back to back.

In a mixture, the weight of a dataset is how often each of its samples is seen in an epoch: 1 once,
3 three times, 0.5 half of them once, 1.5 all of them once and half of them twice. Which half
depends only on the seed. No tokens are copied: an index refers to a sample of one of the datasets.

A DataLoader passes a batch of numbers to a dataset (`__getitems__`) and the result to the collater.
These datasets return `Rows`, whose tokens are gathered from the memory map in a few array
operations, whatever their number. `Rows` also behaves as a sequence of samples.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sonde.data.batching import epoch_order
from sonde.data.directory import DataDirectory
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import Ragged
from sonde.errors import SettingError, check_at_least, check_choice

NO_SAMPLE = -1
"""Sample number of a row without a sample: one of unknown origin, or the row of an empty batch."""


class Sample(NamedTuple):
    """One sample. Its arrays are views: copy before you write."""

    target: NDArray[np.generic]
    """The ids to predict, ending in `eos`."""
    source: NDArray[np.generic] | None = None
    """The source ids; None for a language model."""
    dataset: str = ""
    """Name of the dataset that it comes from."""
    sample_id: int = NO_SAMPLE
    """Its number in that dataset."""
    weight: float = 1.0
    """Weight of its loss."""


class TokenDataset(Protocol):
    """What the loader needs from a dataset.

    Your own map-style dataset can also be used without it: see docs/data.md.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sample: ...

    def __getitems__(self, indices: Sequence[int], /) -> "Rows":
        """Return many samples at once."""

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Length of each sample in tokens: (N, 2) source and target, or (N,)."""

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of a dataset's samples in this one: none, one, or several each in a
        mixture.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The samples of a batch. Behaves as a sequence of `Sample`."""

    target: Ragged
    """The targets."""
    source: Ragged | None
    """The sources, or None."""
    provenance: list[tuple[str, int]]
    """For each row, the name of its dataset and its sample number in it."""
    weights: NDArray[np.float32]
    """For each row, the weight of its loss."""

    def __len__(self) -> int:
        return len(self.provenance)

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> Sample:
        row = range(len(self))[row]
        source = None if self.source is None else self.source.sequence(row)
        return Sample(
            self.target.sequence(row), source, *self.provenance[row], float(self.weights[row])
        )


def gather(
    tokens: NDArray[np.generic], starts: NDArray[np.int64], lengths: NDArray[np.integer[Any]]
) -> Ragged:
    """Return the sequences of these lengths that begin at `starts` in an array of tokens."""
    places = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    places += np.arange(len(places))
    return Ragged(tokens[places].astype(np.int64), lengths)


def rows_of_one_dataset(
    name: str, samples: NDArray[np.int64], target: Ragged, source: Ragged | None = None
) -> Rows:
    """Return the rows of a batch from one dataset, all with weight 1."""
    provenance = list(zip(itertools.repeat(name), samples.tolist()))
    return Rows(
        target=target,
        source=source,
        provenance=provenance,
        weights=np.ones(len(samples), np.float32),
    )


def rows_of_samples(samples: Sequence[Any]) -> Rows:
    """Return the rows of a batch from samples of any dataset.

    Each sample is a `Sample`, a pair (source, target), or one array, list or tensor, which is a
    target.
    """
    known = [sample if isinstance(sample, Sample) else _as_sample(sample) for sample in samples]
    sources = [sample.source for sample in known if sample.source is not None]
    if len(sources) not in (0, len(known)):
        raise SettingError("some samples of a batch have a source and some have none")
    return Rows(
        target=_together([sample.target for sample in known]),
        source=_together(sources) if sources else None,
        provenance=[(sample.dataset, sample.sample_id) for sample in known],
        weights=np.array([sample.weight for sample in known], np.float32),
    )


def _as_sample(sample: Any) -> Sample:
    if isinstance(sample, tuple) and len(sample) == 2 and not isinstance(sample[0], int):
        return Sample(source=np.asarray(sample[0]), target=np.asarray(sample[1]))
    tokens = np.asarray(sample)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise SettingError(
            f"a sample of type {type(sample).__name__} is not understood",
            hint=(
                "return a sonde.data.datasets.Sample, a pair (source, target), or a sequence of ids"
            ),
        )
    return Sample(target=tokens)


def _together(arrays: Sequence[NDArray[np.generic]]) -> Ragged:
    return Ragged(
        np.concatenate(arrays).astype(np.int64),
        np.array([len(array) for array in arrays], np.int64),
    )


def open_pairs(data: DataDirectory | Path | str, split: str = "train") -> "PairDataset":
    """Open the pairs of a split, named after it, in the direction of its preparation.

    ```python
    from pathlib import Path

    from sonde.data import PrepareSettings, open_pairs, prepare

    for language, words in {"en": "a house", "de": "ein Haus"}.items():
        Path(f"corpus.{language}").write_text(f"{words}\\n" * 200)
    files = {"en": Path("corpus.en"), "de": Path("corpus.de")}
    prepare(PrepareSettings(splits={"train": files}, out=Path("data"), tokenizer="bytes"))
    pairs = open_pairs("data", "train")
    assert (len(pairs), pairs.source.origin(7)) == (200, ("corpus.en", 8))
    ```
    """
    directory = data if isinstance(data, DataDirectory) else DataDirectory(data)
    languages = directory.languages(split)
    if len(languages) != 2:
        raise SettingError(
            f"{split} has {len(languages)} languages, not two: {', '.join(languages)}"
        )
    source, target = (directory.tokens(split, language) for language in languages)
    return PairDataset(source, target, name=split)


@dataclass(frozen=True, slots=True)
class PairDataset:
    """Two token files side by side. `pairs[i]` is a `Sample` of two zero-copy views."""

    source: TokenFile
    """The token file of the source language."""
    target: TokenFile
    """The token file of the target language."""
    name: str
    """Name of the dataset in rows and skip lists."""

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise SettingError(
                f"{self.source.prefix} has {len(self.source)} samples and {self.target.prefix} has"
                f" {len(self.target)}",
                hint="prepare both from parallel files in one call of `sonde prepare`",
            )

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, sample: int) -> Sample:
        return Sample(self.target[sample], self.source[sample], self.name, sample % len(self))

    def __getitems__(self, samples: Sequence[int]) -> Rows:
        """Return many samples at once."""
        numbers = np.asarray(samples, np.int64)
        target, source = (
            gather(side.flat, *side.spans(numbers)) for side in (self.target, self.source)
        )
        return rows_of_one_dataset(self.name, numbers, target, source)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Source and target lengths of each pair in tokens, (N, 2)."""
        return np.stack([self.source.sizes, self.target.sizes], axis=1)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `samples` if `dataset` is this dataset, and nothing otherwise."""
        return samples[samples < len(self)] if dataset == self.name else np.zeros(0, np.int64)

    def document(self, sample: int, position: int) -> int:
        """Return `sample`: a pair is one document."""
        del position
        return sample

    def origin(self, document: int) -> tuple[str, int]:
        """Return the text file and the line of a pair's target."""
        return self.target.origin(document)


class BlockDataset:
    """Blocks of at most `block_size` tokens. `blocks[i]` is a `Sample` with only a target."""

    def __init__(
        self,
        tokens: TokenFile,
        block_size: int,
        *,
        name: str,
        mode: Literal["cut", "pack"] = "pack",
    ) -> None:
        check_at_least(1, block_size=block_size)
        check_choice(("cut", "pack"), mode=mode)
        self.target = tokens
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
        start, end = self._span(block)  # raises IndexError beyond the ends
        return Sample(
            target=self.target.flat[start:end], dataset=self.name, sample_id=block % len(self)
        )

    def __getitems__(self, blocks: Sequence[int]) -> Rows:
        """Return many blocks at once."""
        numbers = np.asarray(blocks, np.int64)
        return rows_of_one_dataset(
            self.name, numbers, gather(self.target.flat, *self._spans(numbers))
        )

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Length of each block in tokens."""
        return self._spans(np.arange(len(self)))[1].astype(np.int32)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `samples` if `dataset` is this dataset, and nothing otherwise."""
        return samples[samples < len(self)] if dataset == self.name else np.zeros(0, np.int64)

    def document(self, block: int, position: int) -> int:
        """Return the number of the document that a position of a block comes from."""
        start, end = self._span(block)
        if not 0 <= position < end - start:
            raise IndexError(
                f"block {block} has {end - start} tokens, there is no position {position}"
            )
        return int(np.searchsorted(self.document_starts, start + position, side="right")) - 1

    def origin(self, document: int) -> tuple[str, int]:
        """Return the text file and the line of a document."""
        first = self.target.documents[document] if len(self.target.documents) else document
        return self.target.origin(int(first))

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
            ends = np.minimum(starts + self.block_size, self.target.num_tokens)
        else:
            documents = np.searchsorted(self._first_blocks, blocks, side="right") - 1
            starts = (
                self.document_starts[documents]
                + (blocks - self._first_blocks[documents]) * self.block_size
            )
            ends = np.minimum(starts + self.block_size, self.document_starts[documents + 1])
        return starts, ends - starts


def _document_starts(tokens: TokenFile) -> NDArray[np.int64]:
    starts = tokens.pointers // tokens.index.dtype.itemsize
    with_end = np.append(starts, tokens.num_tokens)
    return with_end[tokens.documents] if len(tokens.documents) else with_end


class MixtureDataset:
    """A weighted mixture. `parts` maps each name to a dataset and its weight."""

    def __init__(self, parts: Mapping[str, tuple[TokenDataset, float]], *, seed: int = 1) -> None:
        if not parts:
            raise SettingError("a mixture needs at least one dataset")
        self._names = tuple(parts)
        self._datasets = [dataset for dataset, _ in parts.values()]
        self._seen = [
            _seen(name, len(dataset), weight, seed) for name, (dataset, weight) in parts.items()
        ]
        self._bounds = np.cumsum([0, *map(len, self._seen)])
        if len({dataset.lengths.ndim for dataset in self._datasets}) > 1:
            raise SettingError(
                "pairs and single sequences do not mix: a batch has a source or it has none"
            )

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, index: int) -> Sample:
        index = range(len(self))[index]
        number = int(np.searchsorted(self._bounds, index, side="right")) - 1
        sample = self._datasets[number][int(self._seen[number][index - self._bounds[number]])]
        return sample._replace(dataset=self._names[number])

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Return many samples at once, each from its dataset."""
        return rows_of_samples([self[index] for index in indices])

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Length of each sample in tokens, as its dataset reports it."""
        return np.concatenate(
            [
                dataset.lengths[seen]
                for dataset, seen in zip(self._datasets, self._seen, strict=True)
            ]
        )

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return every place where one of the samples occurs."""
        if dataset not in self._names:
            return np.zeros(0, np.int64)
        number = self._names.index(dataset)
        return np.flatnonzero(np.isin(self._seen[number], samples)) + int(self._bounds[number])


def _seen(name: str, num_samples: int, weight: float, seed: int) -> NDArray[np.int64]:
    """Return the samples that an epoch sees of a dataset, each as often as it is seen."""
    if not weight > 0:
        raise SettingError(f"the weight of {name} must be above 0, not {weight}")
    whole = np.tile(np.arange(num_samples), int(weight))
    some = epoch_order(num_samples, seed=seed, epoch=0)[: round(weight % 1 * num_samples)]
    return np.concatenate([whole, np.sort(some)])
