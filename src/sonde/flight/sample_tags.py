"""Samples that keep their numbers on the way through a data loader, and samples that are left out there.

    tag(loader, skip)            # the loader's batches now hold their numbers under TAG

The numbers are put beside the samples where they are fetched, so they are right with any sampler, with data workers, on every rank and after a
resume in the middle of an epoch. A sample on the skip list is left out of its batch; no other sample moves. Where it would leave its batch empty,
the next one in the dataset stands in for it.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final, final

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sonde.data.skip_list import SkipList
from sonde.flight.batch_tree import CONTENT, TRAIN, names_of_sample

TAG: Final = "sonde.sample_ids"
"""What a batch has the numbers of its samples under; a user's own `sample_ids` stay theirs."""


def tag(loader: Any, skip: SkipList) -> bool:
    """Have a loader's batches carry the numbers of their samples, and leave some out. False when it has no numbers to give.

    Batches must be dicts: the caller takes the numbers out again before anybody sees them.
    """
    inner = getattr(loader, "base_dataloader", loader)  # Accelerate wraps the loader that does the work
    dataset = getattr(inner, "dataset", None)
    if not isinstance(inner, DataLoader) or inner.batch_sampler is None:
        return False
    if isinstance(dataset, (IterableDataset, Tagged)) or not hasattr(dataset, "__getitem__"):
        return isinstance(dataset, Tagged)
    # Torch refuses a new dataset since samplers may know the old one. This one has the same samples under the same numbers.
    inner.__dict__["dataset"] = Tagged(dataset, skip)
    inner.collate_fn = TaggedCollate(inner.collate_fn)
    return True


@final
class Tagged(Dataset[Any]):
    """A dataset whose samples come as pairs with their numbers."""

    def __init__(self, dataset: Any, skip: SkipList) -> None:
        self._dataset = dataset
        self._numbers = frozenset(skip.samples(TRAIN).tolist())
        self._contents = frozenset(skip.samples(CONTENT).tolist())

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: Any) -> Any:
        return number, self._dataset[number]

    def __getitems__(self, numbers: Sequence[Any]) -> list[Any]:
        """The samples of a batch."""
        if not self._numbers and not self._contents:
            return self._fetch(numbers)
        kept = self._kept(numbers)
        after = numbers[-1]
        for _ in range(len(self)):
            if kept:
                break
            after = (after + 1) % len(self)
            kept = self._kept([after])
        return kept

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # while it is unpickled in a data worker it has nothing yet
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def _kept(self, numbers: Sequence[Any]) -> list[Any]:
        found = self._fetch([one for one in numbers if one not in self._numbers])
        return [pair for pair in found if not self._contents or not self._contents & names_of_sample(pair[1])]

    def _fetch(self, numbers: Sequence[Any]) -> list[Any]:
        if not numbers:
            return []
        together = getattr(self._dataset, "__getitems__", None)
        samples = [self._dataset[one] for one in numbers] if together is None else together(list(numbers))
        return list(zip(numbers, samples, strict=True))


@final
class TaggedCollate:
    """Makes a batch as the user's own function does, and adds the numbers."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, pairs: list[Any]) -> Any:
        """One batch."""
        batch = self._collate([sample for _, sample in pairs])
        if isinstance(batch, MutableMapping) and type(pairs[0][0]) is int:
            batch[TAG] = torch.tensor([number for number, _ in pairs])
        return batch
