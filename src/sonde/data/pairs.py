"""Pairs of sentences: sample i of one token file is the source, sample i of another the target."""

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from sonde.data.directory import DataDirectory
from sonde.data.samples import Rows, Sample, rows_of_one_dataset
from sonde.data.token_file import TokenFile
from sonde.errors import SettingError


def open_pairs(
    data: DataDirectory | Path | str,
    split: str = "train",
    *,
    source: str | None = None,
    target: str | None = None,
    name: str | None = None,
) -> "PairDataset":
    """The pairs of a split, in the direction of its preparation unless languages are named. Its name is the split's."""
    directory = data if isinstance(data, DataDirectory) else DataDirectory(data)
    languages = directory.languages(split)
    if len(languages) != 2 and (source is None or target is None):
        raise SettingError(f"{split} has {len(languages)} languages, not two: {', '.join(languages)}")
    first, second = source or languages[0], target or languages[1]
    return PairDataset(directory.tokens(split, first), directory.tokens(split, second), name=name or split)


@final
class PairDataset:
    """Two token files, side by side. `pairs[i]` is a `Sample` of two zero-copy views."""

    def __init__(self, source: TokenFile, target: TokenFile, *, name: str) -> None:
        if len(source) != len(target):
            raise SettingError(
                f"{source.prefix} has {len(source)} samples and {target.prefix} has {len(target)}",
                hint="prepare both from parallel files in one call of `sonde prepare`",
            )
        self.source = source
        """Where from."""
        self.target = target
        """Where to."""
        self.name = name
        """How rows and skip lists call it."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, sample: int) -> Sample:
        return Sample(self.target[sample], self.source[sample], self.name, sample % len(self))

    def __getitems__(self, samples: Sequence[int]) -> Rows:
        """Many samples at once, by where they lie."""
        numbers = np.asarray(samples, np.int64)
        return rows_of_one_dataset(self.name, numbers, self.target.gather(numbers), self.source.gather(numbers))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Source and target tokens of each pair, (N, 2)."""
        return np.stack([self.source.sizes, self.target.sizes], axis=1)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples themselves, if they are this dataset's."""
        return samples[samples < len(self)] if dataset == self.name else np.zeros(0, np.int64)
