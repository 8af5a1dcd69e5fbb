"""The loader: batches of one rank, prefetched by worker processes, resumable to the batch.

    for batch in loader:            # the rest of this epoch
        ...
        loader.state_dict()         # a few integers, the same on every rank; counts the batches handed out so far

It is `torch.utils.data.DataLoader` with sonde's batch sampler and collater, plus two things: it knows which batch was
handed out last (workers run ahead of that), and a worker that dies or stalls is an error that names it
(watched_workers.py).
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from sonde.data.batch import Batch
from sonde.data.batch_sampler import Position, ShardedBatchSampler
from sonde.data.batching import Batches, batch_by_tokens
from sonde.data.collate import Collater
from sonde.data.samples import TokenDataset
from sonde.data.skip_list import SkipList
from sonde.data.watched_workers import POLL_SECONDS, watched
from sonde.errors import SettingError, check_at_least


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderSettings:
    """What goes into a batch, and who prepares it."""

    max_tokens: int | None = 4096
    """Padded size of a batch; None is no limit."""
    max_sentences: int | None = None
    """Rows of a batch; None is no limit."""
    multiple_of: int = 8
    """The number of rows is rounded down to a multiple of this; smaller batches stay as they are."""
    count: Literal["longest", "target"] = "longest"
    """What counts as the length of a pair."""
    too_long: Literal["error", "skip"] = "error"
    """What to do with a sample longer than `max_tokens`."""
    seed: int = 1
    """Seed of the order, the only randomness here."""
    shuffle: bool = True
    """Whether batches are shuffled each epoch; without, they come by length."""
    num_shards: int | None = None
    """How many ranks share an epoch; None: the world size."""
    shard_id: int | None = None
    """Which of them this one is; None: the rank of this process."""
    num_workers: int = 0
    """Processes that prepare batches ahead; 0: none, the training process does it."""
    prefetch: int = 2
    """Batches each worker keeps ready."""
    pin_memory: bool = False
    """Whether batches lie in pinned memory."""
    stall_seconds: float = 30.0
    """A batch that takes its worker longer than this is an error."""

    def __post_init__(self) -> None:
        check_at_least(0, num_workers=self.num_workers)
        check_at_least(1, prefetch=self.prefetch)
        if not self.stall_seconds > 0:
            raise SettingError(f"stall_seconds must be above 0, not {self.stall_seconds}")


def rank_and_world_size() -> tuple[int, int]:
    """This process' rank and how many there are: of the process group, else of the launcher's environment, else 0 of 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def left_out_of(dataset: TokenDataset, skip_list: SkipList) -> NDArray[np.int64]:
    """The places in a dataset that a skip list names."""
    found = [dataset.indices_of(name, skip_list.samples(name)) for name in skip_list.datasets]
    return np.concatenate([np.zeros(0, np.int64), *found])


@final
class TokenLoader:
    """Batches of one rank. Iterating goes on from where it stands to the end of the epoch."""

    def __init__(
        self,
        dataset: TokenDataset,
        collater: Collater,
        settings: LoaderSettings | None = None,
        *,
        skip_list: SkipList | None = None,
        batches: Batches | None = None,
    ) -> None:
        self.settings = settings or LoaderSettings()
        """How."""
        self.dataset = dataset
        """What."""
        self.collater = collater
        """What makes a batch of it."""
        rank, world_size = rank_and_world_size()
        own = self.settings
        if batches is None:
            batches = batch_by_tokens(
                dataset.lengths,
                own.max_tokens,
                own.max_sentences,
                own.multiple_of,
                count=own.count,
                too_long=own.too_long,
                seed=own.seed,
            )
        self.sampler = ShardedBatchSampler(
            batches,
            seed=own.seed,
            shuffle=own.shuffle,
            num_shards=world_size if own.num_shards is None else own.num_shards,
            shard_id=rank if own.shard_id is None else own.shard_id,
            left_out=left_out_of(dataset, skip_list) if skip_list else None,
        )
        """Which batches, in which order; holds the position."""

    @property
    def position(self) -> Position:
        """The next batch."""
        return self.sampler.position

    def __len__(self) -> int:
        """Batches left in the epoch, for each rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        own = self.settings
        workers: dict[str, Any] = {}
        if own.num_workers:
            workers = {"prefetch_factor": own.prefetch, "timeout": min(POLL_SECONDS, own.stall_seconds)}
        # torch's types want a torch Dataset; it takes whatever has __len__ and __getitem__.
        data: Any = self.dataset
        loader: DataLoader[Batch] = DataLoader(
            data,
            batch_sampler=self.sampler,
            collate_fn=self.collater,
            num_workers=own.num_workers,
            pin_memory=own.pin_memory,
            **workers,
        )
        num_batches = len(self.sampler)
        batches: Iterator[Batch] = iter(loader)
        if own.num_workers:
            batches = watched(batches, own.stall_seconds)
        for _ in range(num_batches):
            batch = next(batches)
            self.sampler.advance()
            yield batch

    def leave_out(self, skip_list: SkipList) -> None:
        """From the next iteration on, leave out what a list names, and nothing else."""
        self.sampler.left_out = np.unique(left_out_of(self.dataset, skip_list))

    def state_dict(self) -> dict[str, int]:
        """Where the run stands: a few integers, the same on every rank, good for any number of ranks and workers."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""
        self.sampler.load_state_dict(state)
