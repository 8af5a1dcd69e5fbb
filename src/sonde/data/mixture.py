"""Several datasets as one, by name and weight.

A weight says how often each sample of a dataset is seen in an epoch: 1 once, 3 three times, 0.5 half of them once, 1.5 all
of them once and half of them twice. Which half is a pure function of the seed. Nothing is copied: an index is a place in
one of the datasets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from sonde.data.batching import epoch_order
from sonde.data.samples import Ragged, Rows, Sample, TokenDataset
from sonde.errors import SettingError


@final
@dataclass(frozen=True, slots=True)
class _Component:
    """One dataset of a mixture."""

    name: str
    dataset: TokenDataset
    num_whole: int
    """Times all of it is seen."""
    some: NDArray[np.int64]
    """Samples seen once more."""

    def __len__(self) -> int:
        return self.num_whole * len(self.dataset) + len(self.some)

    def samples(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sample at each place."""
        num_whole = self.num_whole * len(self.dataset)
        result = places % max(1, len(self.dataset))
        extra = places >= num_whole
        result[extra] = self.some[places[extra] - num_whole]
        return result


@final
class MixtureDataset:
    """A weighted mixture. `parts` gives for each name a dataset and its weight."""

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
        """Many samples at once, each from its dataset."""
        places = np.asarray(indices, np.int64)
        which = np.searchsorted(self._bounds, places, side="right") - 1
        # Each dataset gives its rows together; `order` brings them back to where they were asked for.
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
        """Tokens of each sample, as its dataset gives them."""
        found = []
        for component in self._components:
            lengths = component.dataset.lengths
            found.append(lengths[component.samples(np.arange(len(component)))])
        return np.concatenate(found)

    def indices_of(self, dataset: str, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every place where one of the samples stands."""
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
