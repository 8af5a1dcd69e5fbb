"""Samples and their numbers on the way through a data loader: noted, put into batches, left out.

    without(dataset, run)        # a map-style dataset without what a run is told to skip, by number or by content
    tag(loader, skip)            # the loader's batches hold the numbers of their samples under TAG
    order = follow(loader, skip) # the order of its batches: `taken` numbers, and where the epoch is

A tag is put beside the sample where it is fetched, so it is right with any sampler, with data workers, on every rank and after a resume in the middle of an epoch.
Hosts that hand batches of any kind to the user's own code, and begin an epoch anew after a resume, are followed instead: with data workers batches are drawn
ahead, and come in the order of drawing.

A sample on the skip list is left out of its batch; no other sample moves. Where it would leave its batch empty, the next one that stays stands in for it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from sonde.data.skip_list import SkipList, read_skip_list
from sonde.errors import SettingError
from sonde.flight.batch_tree import CONTENT, TRAIN, names_of_sample
from sonde.records.layout import RunLayout
from sonde.run import Run

TAG: Final = "sonde.sample_ids"
"""What a batch has the numbers of its samples under; a user's own `sample_ids` stay theirs."""


def skipped(layout: RunLayout) -> SkipList:
    """The samples that a run is told to skip."""
    return read_skip_list(layout.skip_list) if layout.skip_list.exists() else SkipList()


def without(dataset: Any, run: "Run | Path | str", *, name: str = TRAIN) -> Any:
    """The dataset without what the run's skip list names; the dataset itself when it names nothing of it.

    `name` is what the skip list calls the dataset.
    """
    missing = [one for one in ("__len__", "__getitem__") if not hasattr(dataset, one)]
    if missing:
        raise SettingError(
            f"samples can be left out of a dataset with numbers only, and {type(dataset).__name__} has no {missing[0]}",
            hint="a dataset that is iterated over must leave them out itself: sonde.data.skip_list.read_skip_list",
        )
    skip = skipped(run.layout if isinstance(run, Run) else RunLayout(Path(run)))
    numbers = set(skip.samples(name).tolist())
    contents = set(skip.samples(CONTENT).tolist())
    if contents:
        numbers |= {at for at in range(len(dataset)) if names_of_sample(dataset[at]) & contents}
    return Subset(dataset, [at for at in range(len(dataset)) if at not in numbers]) if numbers else dataset


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
        others = ([(numbers[-1] + far) % len(self)] for far in range(1, len(self)))
        return next(filter(None, map(self._kept, chain([numbers], others))), [])

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


def follow(loader: Any, skip: SkipList) -> "BatchOrder | None":
    """Follow the batches of a loader; None when it draws none by numbers, or keeps its own place."""
    is_plain = isinstance(loader, DataLoader) and loader.batch_sampler is not None
    if not is_plain or hasattr(loader, "state_dict"):
        return None
    order = BatchOrder(loader, skip)
    # Torch refuses another sampler once a loader is made. This one draws the same batches, and so the loader is the same.
    loader.__dict__["batch_sampler"] = order
    return order


@final
class BatchOrder:
    """A batch sampler that draws what another one draws, and keeps the numbers."""

    def __init__(self, loader: Any, skip: SkipList) -> None:
        self._batches = loader.batch_sampler
        self._num_samples = len(loader.dataset)
        self._left_out = frozenset(skip.samples(TRAIN).tolist())
        self._drawn: deque[Any] = deque()
        self._begun_at: torch.Tensor | None = None
        self._num_taken = 0
        self._goes_on: tuple[torch.Tensor, int] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_batches"], name)

    def __iter__(self) -> Iterator[Any]:
        self._drawn.clear()
        goes_on, self._goes_on = self._goes_on, None
        self._num_taken = 0 if goes_on is None else goes_on[1]
        self._begun_at = torch.get_rng_state() if goes_on is None else goes_on[0]
        torch.set_rng_state(self._begun_at)
        for place, batch in enumerate(self._batches):
            if goes_on is not None and place < goes_on[1]:
                continue
            kept = [one for one in batch if one not in self._left_out] or [self._stand_in(batch[-1])]
            self._drawn.append(kept)
            yield kept

    def taken(self) -> list[int] | None:
        """The samples of the batch that is taken now; None when they are not known by number."""
        self._num_taken += 1
        numbers = self._drawn.popleft() if self._drawn else None
        return numbers if numbers and all(type(one) is int for one in numbers) else None

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch is."""
        return {"begun_at": self._begun_at, "num_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from there; an epoch that was over is not gone on with."""
        begun_at, num_taken = state["begun_at"], int(state["num_taken"])
        if begun_at is not None and 0 < num_taken < len(self):
            self._goes_on = (begun_at, num_taken)

    def _stand_in(self, number: Any) -> Any:
        """The next sample that stays, for a batch of which nothing is left."""
        others = (one % self._num_samples for one in range(number + 1, number + self._num_samples))
        return next((one for one in others if one not in self._left_out), number)
