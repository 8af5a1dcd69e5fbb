"""One sample, and many rows to be collated at once.

A DataLoader passes a batch of numbers to a dataset (`__getitems__`) and the result to the collater. Sonde's datasets
return `Rows`, whose tokens are gathered from the memory map in a few array operations, whatever their number. `Rows`
also behaves as a sequence of samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sonde.errors import SettingError

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
        """Return the indices of a dataset's samples in this one: none, one, or several each in a mixture."""


class Ragged(NamedTuple):
    """Sequences of different lengths, stored back to back."""

    flat: NDArray[np.int64]
    """Tokens of all sequences."""
    lengths: NDArray[np.int64]
    """Length of each sequence."""

    def reordered(self, order: NDArray[np.int64]) -> "Ragged":
        """Return the sequences in another order."""
        return gather(self.flat, (np.cumsum(self.lengths) - self.lengths)[order], self.lengths[order])


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The samples of a batch. Behaves as a sequence of `Sample`."""

    target: Ragged
    """The targets."""
    source: Ragged | None
    """The sources, or None."""
    names: tuple[str, ...]
    """Names of the datasets."""
    dataset_of_row: NDArray[np.int32]
    """For each row, the position of its dataset in `names`."""
    sample_ids: NDArray[np.int64]
    """For each row, its sample number in that dataset."""
    weights: NDArray[np.float32]
    """For each row, the weight of its loss."""

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __iter__(self) -> Iterator[Sample]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> Sample:
        row = range(len(self))[row]
        one = np.array([row])
        return Sample(
            target=self.target.reordered(one).flat,
            source=None if self.source is None else self.source.reordered(one).flat,
            dataset=self.names[int(self.dataset_of_row[row])],
            sample_id=int(self.sample_ids[row]),
            weight=float(self.weights[row]),
        )


def gather(tokens: NDArray[np.generic], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Ragged:
    """Return the sequences of these lengths that begin at `starts` in an array of tokens."""
    places = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    places += np.arange(len(places))
    return Ragged(tokens[places].astype(np.int64), lengths)


def rows_of_one_dataset(name: str, samples: NDArray[np.int64], target: Ragged, source: Ragged | None = None) -> Rows:
    """Return the rows of a batch from one dataset, all with weight 1."""
    return Rows(
        target=target,
        source=source,
        names=(name,),
        dataset_of_row=np.zeros(len(samples), np.int32),
        sample_ids=samples,
        weights=np.ones(len(samples), np.float32),
    )


def rows_of_samples(samples: Sequence[Any]) -> Rows:
    """Return the rows of a batch from samples of any dataset.

    Each sample is a `Sample`, a pair (source, target), or one array, list or tensor, which is a target.
    """
    known = [sample if isinstance(sample, Sample) else _as_sample(sample) for sample in samples]
    sources = [sample.source for sample in known if sample.source is not None]
    if len(sources) not in (0, len(known)):
        raise SettingError("some samples of a batch have a source and some have none")
    names = tuple(dict.fromkeys(sample.dataset for sample in known))
    return Rows(
        target=_joined([sample.target for sample in known]),
        source=_joined(sources) if sources else None,
        names=names,
        dataset_of_row=np.array([names.index(sample.dataset) for sample in known], np.int32),
        sample_ids=np.array([sample.sample_id for sample in known], np.int64),
        weights=np.array([sample.weight for sample in known], np.float32),
    )


def _as_sample(sample: Any) -> Sample:
    if isinstance(sample, tuple) and len(sample) == 2 and not isinstance(sample[0], int):
        return Sample(source=np.asarray(sample[0]), target=np.asarray(sample[1]))
    tokens = np.asarray(sample)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise SettingError(
            f"a sample of type {type(sample).__name__} is not understood",
            hint="return a sonde.data.samples.Sample, a pair (source, target), or a sequence of ids",
        )
    return Sample(target=tokens)


def _joined(arrays: Sequence[NDArray[np.generic]]) -> Ragged:
    return Ragged(np.concatenate(arrays).astype(np.int64), np.array([len(array) for array in arrays], np.int64))
