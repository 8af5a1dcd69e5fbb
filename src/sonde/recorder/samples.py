"""Follow samples and their numbers through a data loader: record them, add them to batches, leave
some out.

    without(dataset, run)        # a map-style dataset without what a run is told to skip, by number
                                 # or by content
    tag(loader, skip)            # the loader's batches hold the numbers of their samples under TAG
    order = follow(loader, skip) # the order of its batches: `taken` numbers, and where the epoch is
    Rewound(loader)              # a loader that goes back with the training, if it has a
                                 # `state_dict`

A tag is added to the sample where it is fetched, so it is right with any sampler, with data
workers, on every rank and after a resume in the middle of an epoch. Hosts that pass arbitrary
batches to the user's code, and restart an epoch after a resume, are followed instead: with data
workers, batches are drawn ahead and arrive in the order of drawing.

A sample on the skip list is left out of its batch; no other sample moves. If that would leave its
batch empty, the next sample that is not skipped replaces it.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Sized
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from sonde.data.skip_list import CONTENT, SkipList, read_skip_list
from sonde.errors import SettingError
from sonde.recorder.batch_tree import TRAIN, names_of_sample
from sonde.records.layout import RunLayout
from sonde.run import Run

TAG: Final = "sonde.sample_ids"
"""The batch key with the numbers of its samples; a user's own `sample_ids` are not affected."""


def skipped(layout: RunLayout) -> SkipList:
    """Return the samples that a run is told to skip."""
    return read_skip_list(layout.skip_list) if layout.skip_list.exists() else SkipList()


def without(dataset: Any, run: "Run | Path | str", *, name: str = TRAIN) -> Any:
    """Return the dataset without the samples on the run's skip list; the dataset itself if none are
    on it.

    `name` is the dataset's name in the skip list.
    """
    missing = [method for method in ("__len__", "__getitem__") if not hasattr(dataset, method)]
    if missing:
        raise SettingError(
            f"samples can be left out of a dataset with numbers only, and {type(dataset).__name__}"
            f" has no {missing[0]}",
            hint=(
                "a dataset that is iterated over must leave them out itself:"
                " sonde.data.skip_list.read_skip_list"
            ),
        )
    skip = skipped(run.layout if isinstance(run, Run) else RunLayout(Path(run)))
    numbers = set(skip.samples(name).tolist())
    contents = set(skip.samples(CONTENT).tolist())
    if contents:
        numbers |= {at for at in range(len(dataset)) if names_of_sample(dataset[at]) & contents}
    return (
        Subset(dataset, [at for at in range(len(dataset)) if at not in numbers])
        if numbers
        else dataset
    )


def tag(loader: Any, skip: SkipList) -> bool:
    """Make a loader's batches carry the numbers of their samples, and leave some out. False if the
    loader has no numbers.

    Batches must be dicts; the caller removes the numbers again before anyone sees them.
    """
    # Accelerate wraps the loader that does the work
    inner = getattr(loader, "base_dataloader", loader)
    dataset = getattr(inner, "dataset", None)
    if not isinstance(inner, DataLoader) or inner.batch_sampler is None:
        return False
    if isinstance(dataset, (IterableDataset, Tagged)) or not hasattr(dataset, "__getitem__"):
        return isinstance(dataset, Tagged)
    # Torch refuses to replace a dataset because samplers may refer to it. This one has the same
    # samples under the same numbers.
    inner.__dict__["dataset"] = Tagged(dataset, skip)
    inner.collate_fn = TaggedCollate(inner.collate_fn)
    return True


class Tagged(Dataset[Any]):
    """A dataset that returns its samples as pairs with their numbers."""

    def __init__(self, dataset: Any, skip: SkipList) -> None:
        self._dataset = dataset
        self._numbers = frozenset(skip.samples(TRAIN).tolist())
        self._contents = frozenset(skip.samples(CONTENT).tolist())

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: Any) -> Any:
        return number, self._dataset[number]

    def __getitems__(self, numbers: Sequence[Any]) -> list[Any]:
        """Return the samples of a batch."""
        others = ([(numbers[-1] + far) % len(self)] for far in range(1, len(self)))
        return next(filter(None, map(self._kept, chain([numbers], others))), [])

    def __getattr__(self, name: str) -> Any:
        # while being unpickled in a data worker, it has no attributes yet
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def _kept(self, numbers: Sequence[Any]) -> list[Any]:
        wanted = [number for number in numbers if number not in self._numbers]
        if wanted and hasattr(self._dataset, "__getitems__"):
            samples = self._dataset.__getitems__(wanted)
        else:
            samples = [self._dataset[number] for number in wanted]
        pairs = zip(wanted, samples, strict=True)
        return [
            pair
            for pair in pairs
            if not self._contents or not self._contents & names_of_sample(pair[1])
        ]


class TaggedCollate:
    """Collates a batch with the user's function, and adds the numbers."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, pairs: list[Any]) -> Any:
        """Collate one batch."""
        batch = self._collate([sample for _, sample in pairs])
        if isinstance(batch, MutableMapping) and type(pairs[0][0]) is int:
            batch[TAG] = torch.tensor([number for number, _ in pairs])
        return batch


def follow(loader: Any, skip: SkipList) -> "BatchOrder | None":
    """Follow the batches of a loader; None if it does not draw them by number, or keeps track of
    its own position.
    """
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return None
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return None
    order = BatchOrder(loader, skip)
    # Torch refuses to replace the sampler of a loader. This one draws the same batches, so the
    # loader stays the same.
    loader.__dict__["batch_sampler"] = order
    return order


class BatchOrder:
    """A batch sampler that draws what another one draws, and keeps the numbers."""

    def __init__(self, loader: Any, skip: SkipList) -> None:
        self._batches = loader.batch_sampler
        self._dataset = loader.dataset
        self._left_out = frozenset(skip.samples(TRAIN).tolist())
        self._drawn: deque[Any] = deque()
        self._generators = _own_generators(loader)
        self._begun_at: list[torch.Tensor] | None = None
        self._num_taken = 0
        self._goes_on: tuple[list[torch.Tensor], int] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_batches"], name)

    def __iter__(self) -> Iterator[Any]:
        self._drawn.clear()
        self._begun_at, self._num_taken = self._goes_on or (self._states(), 0)
        self._goes_on = None
        for generator, state in zip(self._generators, self._begun_at, strict=False):
            generator.set_state(state)
        for batch in islice(self._batches, self._num_taken, None):
            kept = [row for row in batch if row not in self._left_out] or [
                self._stand_in(batch[-1])
            ]
            self._drawn.append(kept)
            yield kept

    def taken(self) -> list[int] | None:
        """Return the samples of the current batch; None if they are not known by number."""
        self._num_taken += 1
        numbers = self._drawn.popleft() if self._drawn else None
        return numbers if numbers and all(type(number) is int for number in numbers) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch: the generators at its beginning, and what was taken."""
        return {"begun_at": self._begun_at, "num_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the next iteration from the saved position, unless that epoch was complete."""
        begun_at = state["begun_at"]
        num_taken = int(state["num_taken"])
        if begun_at is None:
            return
        # Before the generators of loaders were followed, there was only torch's own.
        states = [begun_at] if isinstance(begun_at, torch.Tensor) else list(begun_at)
        if 0 < num_taken < len(self):
            self._goes_on = (states, num_taken)
            return
        # The epoch was complete: go through its draws, up to the last one at its end. Torch's own
        # generator is restored with the training.
        own = torch.get_rng_state()
        for generator, begun in zip(self._generators[1:], states[1:], strict=False):
            generator.set_state(begun)
        if len(self._generators) > 1:
            deque(self._batches, maxlen=0)
        torch.set_rng_state(own)

    def _states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _stand_in(self, number: Any) -> Any:
        """Return the next sample that is not left out, for a batch that would otherwise be empty;
        the same one if the dataset does not know how many it has.
        """
        if not isinstance(self._dataset, Sized):
            return number
        num_samples = len(self._dataset)
        for following in range(number + 1, number + num_samples):
            other = following % num_samples
            if other not in self._left_out:
                return other
        return number


def _own_generators(loader: Any) -> list[torch.Generator]:
    """Return the generators that the order of a loader depends on, torch's own first."""
    found = [torch.default_generator]
    sampler = getattr(loader.batch_sampler, "sampler", None)
    for owner in (loader, sampler):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is it for it in found):
            found.append(generator)
    return found


class Rewound:
    """A loader as part of the training's state, with the position before the current update."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._drawn_at: Any = None
        self._position: Any = None
        self._goes_back = False

    def begin_update(self) -> None:
        """Mark the batch drawn last as the first one of an update."""
        self._position = self._drawn_at

    def __iter__(self) -> Iterator[Any]:
        self._goes_back = True
        while self._goes_back:
            batches = iter(self._loader)
            self._goes_back = False
            while not self._goes_back:
                position = copy.copy(self._loader.state_dict())
                batch = next(batches, self)
                if batch is self:
                    break
                self._drawn_at = position
                yield batch

    def state_dict(self) -> Any:
        """Return the position where the current update began."""
        return {"position": self._position}

    def load_state_dict(self, state: Any) -> None:
        """Restore the position from `state_dict`, now or with the next batch."""
        if state["position"] is not None:
            self._loader.load_state_dict(state["position"])
            self._goes_back = True
