"""Batches under a token budget, in an order that depends only on a seed and an epoch.

Samples are ordered by length and cut greedily into batches whose padded size (longest sample x
number of samples) stays within `max_tokens`. The semantics are those of fairseq's `batch_by_size`,
including the last batch: a batch ends before the sample that would exceed a limit. If it has more
than `multiple_of` samples, it is cut back to a multiple of that, and the rest starts the next
batch.

An order does not depend on ranks, workers or where a run was resumed. Random bits come directly
from the PCG64 generator and are sorted. The whole rule is in this file, so no later version of
numpy can shuffle differently.

Cost: 10 million lengths, including ordering, in about 1.2 CPU-seconds (benchmarks/data.py). Sorted
lengths come in runs of equal value, and the loop below takes whole runs; a batch takes it about a
microsecond.

`ShardedBatchSampler` decides which batches a rank takes, and in which order. It works as the
`batch_sampler` of any DataLoader. The order of an epoch is a shuffle of all batches by (seed,
epoch), the same on every rank. In each round, rank k of S takes the k-th of the next S batches. If
the last round has fewer, the remaining ranks get an empty list, which the collater turns into a
batch of weight zero: every rank makes the same number of steps, and no sample is seen twice.
Samples on a skip list are removed from their batches, but the batches keep their places, so that
skipping changes nothing else. Starting in the middle costs the same as starting at the front: a
shuffle of the batch numbers, which takes milliseconds.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde.errors import SettingError, check_at_least, check_choice

_UNLIMITED: Final = 1 << 62
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Batches:
    """A grouping of samples into batches. Behaves as a sequence of arrays of sample numbers; the
    batches never change place.
    """

    samples: NDArray[np.int64]
    """Sample numbers, batch after batch."""
    bounds: NDArray[np.int64]
    """Start of each batch in `samples`, followed by the end."""
    skipped: NDArray[np.int64]
    """Samples that exceed the budget and are in no batch, ascending."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, batch: int) -> NDArray[np.int64]:
        batch = range(len(self))[batch]
        return self.samples[self.bounds[batch] : self.bounds[batch + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[batch] for batch in range(len(self)))

    @property
    def fingerprint(self) -> int:
        """Checksum that identifies these batches: a position is only valid in the batches it was
        taken in.
        """
        return zlib.crc32(
            self.bounds.tobytes(), zlib.crc32(np.ascontiguousarray(self.samples).tobytes())
        )


def batch_by_tokens(
    lengths: NDArray[np.integer],
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    multiple_of: int = 1,
    *,
    count: Literal["longest", "target"] = "longest",
    too_long: Literal["error", "skip"] = "error",
    seed: int | None = None,
) -> Batches:
    """Order samples by length and cut them into batches.

    `lengths` has a row for each sample: (source, target), or a single length. The length of a pair
    is the longer of the two with `count="longest"`, and its target's with "target". A sample longer
    than `max_tokens` raises an error, or is skipped and counted. With a seed, samples of equal
    lengths are shuffled before they are cut.

    ```python
    import numpy as np

    from sonde.data import batch_by_tokens

    lengths = np.array([3, 9, 4, 8] * 10)
    batches = batch_by_tokens(lengths, max_tokens=32, multiple_of=1)
    print(len(batches))
    ```
    """
    if lengths.ndim not in (1, 2) or (lengths.ndim == 2 and lengths.shape[1] != 2):
        raise SettingError(f"lengths must have the shape (N,) or (N, 2), not {lengths.shape}")
    check_choice(("longest", "target"), count=count)
    check_choice(("error", "skip"), too_long=too_long)
    sides = np.ascontiguousarray(np.atleast_2d(lengths.T))
    cost = sides.max(axis=0) if count == "longest" else sides[-1]
    order = order_by_length(*sides, seed=seed)
    skipped = np.zeros(0, np.int64)
    if max_tokens is not None and len(cost) and int(cost.max()) > max_tokens:
        skipped = np.flatnonzero(cost > max_tokens)
        order = order[cost[order] <= max_tokens]
    if len(skipped) and too_long == "error":
        raise SettingError(
            f"{len(skipped)} samples are longer than max_tokens = {max_tokens}",
            cause=f"sample {skipped[0]} has {cost[skipped[0]]} tokens, the longest {cost.max()}",
            hint='raise max_tokens, or leave them out with too_long="skip"',
        )
    return Batches(order, cut_batches(cost[order], max_tokens, max_sentences, multiple_of), skipped)


def cut_batches(
    cost: NDArray[np.integer],
    max_tokens: int | None,
    max_sentences: int | None = None,
    multiple_of: int = 1,
) -> NDArray[np.int64]:
    """Return where batches begin when samples of these costs are cut in the given order, followed
    by the end.

    No cost may be above `max_tokens`. None means no limit.
    """
    budget = _UNLIMITED if max_tokens is None else max_tokens
    limit = _UNLIMITED if max_sentences is None else max_sentences
    check_at_least(
        1, max_tokens=int(budget), max_sentences=int(limit), multiple_of=int(multiple_of)
    )
    num_samples = len(cost)
    if num_samples == 0:
        return np.zeros(1, np.int64)

    def most(longest: int) -> int:
        """How many samples fit if the longest costs this much."""
        return min(limit, budget // longest) if longest else limit

    # Samples of one cost that stand together are taken at once, for speed: a run of them.
    ends = np.append(np.flatnonzero(np.diff(cost)) + 1, num_samples)
    run_costs: list[int] = cost[ends - 1].tolist()
    run_ends: list[int] = ends.tolist()
    bounds = [0]
    start = 0
    run = 0
    while start < num_samples:
        while run_ends[run] <= start:
            run += 1
        last = run
        longest = run_costs[last]
        room = most(longest)
        # Take whole runs while the next one's first sample still fits.
        while run_ends[last] < num_samples and run_ends[last] - start < room:
            longest = max(longest, run_costs[last + 1])
            room_beside = most(longest)
            if run_ends[last] - start + 1 > room_beside:
                room = run_ends[last] - start
                break
            room = room_beside
            last += 1
        size = min(room, run_ends[last] - start)
        if size > multiple_of:
            size -= size % multiple_of
        start += size
        bounds.append(start)
    return np.array(bounds, np.int64)


def padding_efficiency(lengths: NDArray[np.integer], batches: Batches) -> float:
    """Return the share of real tokens in the padded batches, for the lengths of one side."""
    if len(batches.samples) == 0:
        return 1.0
    rows = np.asarray(lengths)[batches.samples].astype(np.int64)
    longest = np.maximum.reduceat(rows, batches.bounds[:-1])
    padded = int((longest * np.diff(batches.bounds)).sum())
    return float(rows.sum() / padded) if padded else 1.0


def epoch_order(num_batches: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the batches in an epoch: a shuffle of 0 … num_batches-1."""
    order = np.argsort(_random_bits(num_batches, seed, epoch), kind="stable")
    return order.astype(np.int64, copy=False)


def order_by_length(*keys: NDArray[np.integer], seed: int | None = None) -> NDArray[np.int64]:
    """Return sample numbers sorted by the first of their lengths (the source's), then by the next
    (the target's).

    Equal samples keep their order or, with a seed, are shuffled, so that neighbours in the corpus
    are not neighbours in a batch.
    """
    num_samples = len(keys[0])
    if num_samples == 0:
        return np.zeros(0, np.int64)
    smallest = min(int(key.min()) for key in keys)
    if smallest < 0:
        raise SettingError(f"a length is negative: {smallest}")
    order = np.arange(num_samples)
    if seed is not None:
        ties = _random_bits((num_samples + 3) // 4, seed).view(np.uint16)[:num_samples]
        # Orders stay as 0.2 made them: lengths, tie and sample shared 64 bits, and of the tie at
        # least 8 were used.
        room = 64 - num_samples.bit_length() - sum(int(key.max()).bit_length() for key in keys)
        if 8 <= room < 16:
            ties = ties >> np.uint16(16 - room)
        order = np.argsort(ties, kind="stable")
    for key in reversed(keys):
        # numpy sorts 16 bits in linear time, four times faster than 32.
        narrow = key.astype(np.uint16) if int(key.max()) < 1 << 16 else key
        order = order[np.argsort(narrow[order], kind="stable")]
    return order.astype(np.int64, copy=False)


def _random_bits(count: int, seed: int, epoch: int | None = None) -> NDArray[np.uint64]:
    if seed < 0 or (epoch is not None and epoch < 0):
        raise SettingError(f"seed and epoch are 0 or more, not {seed} and {epoch}")
    entropy = [seed] if epoch is None else [seed, epoch]
    bits = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count)
    return np.asarray(bits, np.uint64).reshape(count)


class Position(NamedTuple):
    """The position of a run in its data: the next batch, as an epoch and the batches done over all
    ranks.

    All ranks hold the same position. It does not depend on the number of ranks, so a run may resume
    with a different one.
    """

    epoch: int = 1
    """The epoch, starting at 1."""
    offset: int = 0
    """Batches of this epoch that are done, over all ranks."""


class ShardedBatchSampler:
    """The batches of one rank for the rest of the epoch at `position`. Iterating does not advance
    the position.

    A DataLoader fetches batches ahead of their use, so only the consumer (`TokenLoader`) knows the
    true position.

    ```python
    import numpy as np

    from sonde.data import ShardedBatchSampler, batch_by_tokens

    batches = batch_by_tokens(np.array([3, 9, 4, 8] * 10), max_tokens=32)
    sampler = ShardedBatchSampler(batches, seed=1, num_shards=2, shard_id=0)
    for rows in sampler:  # as the batch_sampler of a torch DataLoader
        ...
    ```
    """

    def __init__(
        self,
        batches: Batches,
        *,
        seed: int = 1,
        shuffle: bool = True,
        num_shards: int = 1,
        shard_id: int = 0,
    ) -> None:
        if not 0 <= shard_id < num_shards:
            raise SettingError(
                f"there is no shard {shard_id} of {num_shards}", hint="shards count from 0"
            )
        self.batches = batches
        """All batches of all ranks."""
        self.num_shards = num_shards
        """Number of ranks that share an epoch."""
        self.shard_id = shard_id
        """The rank of this sampler."""
        self.position = Position()
        """Where iteration starts."""
        self._seed = seed
        self._fingerprint = batches.fingerprint  # computed once: it reads every sample number
        self._shuffle = shuffle
        self.left_out = np.zeros(0, np.int64)
        """Samples that are removed from their batches. May be set between two batches."""

    def __len__(self) -> int:
        """Return the number of rounds left in the epoch."""
        return (len(self.batches) - self.position.offset + self.num_shards - 1) // self.num_shards

    def __iter__(self) -> Iterator[list[int]]:
        order = self.global_order(self.position.epoch)
        for first in range(self.position.offset, len(order), self.num_shards):
            mine = first + self.shard_id
            samples = (
                self.batches[int(order[mine])] if mine < len(order) else self.batches.samples[:0]
            )
            if len(self.left_out):
                samples = samples[~np.isin(samples, self.left_out)]
            yield samples.tolist()

    def global_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of all batches in an epoch."""
        if not self._shuffle:
            return np.arange(len(self.batches), dtype=np.int64)
        return epoch_order(len(self.batches), seed=self._seed, epoch=epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch (the first is 1)."""
        self.position = Position(epoch=epoch)

    def advance(self) -> None:
        """Advance the position by one batch per rank; after the last batch, to the start of the
        next epoch.
        """
        epoch = self.position.epoch
        offset = self.position.offset + self.num_shards
        self.position = (
            Position(epoch, offset) if offset < len(self.batches) else Position(epoch + 1)
        )

    def state_dict(self) -> dict[str, int]:
        """Return the position and what identifies its batches: a few integers, the same on every
        rank.
        """
        return {
            "version": _VERSION,
            "epoch": self.position.epoch,
            "offset": self.position.offset,
            "seed": self._seed,
            "num_batches": len(self.batches),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore the position, with any number of ranks. Raises if data, budget or seed differ
        from when it was saved.
        """
        own = self.state_dict()
        if state.keys() != own.keys() or state["version"] != _VERSION:
            raise SettingError(
                f"this is not the state of a batch sampler: it has {', '.join(state)}"
            )
        for name in ("num_batches", "fingerprint", "seed"):
            if state[name] != own[name]:
                raise SettingError(
                    f"cannot resume: {name} was {state[name]} and is now {own[name]}",
                    cause="the position belongs to other batches",
                    hint=(
                        "use the data, max_tokens, max_sentences, multiple_of and seed of the run,"
                        f" or start an epoch afresh with set_epoch({state['epoch'] + 1})"
                    ),
                )
        if state["epoch"] < 1 or not 0 <= state["offset"] < max(1, len(self.batches)):
            raise SettingError(
                f"cannot resume at batch {state['offset']} of {len(self.batches)}, epoch"
                f" {state['epoch']}"
            )
        self.position = Position(epoch=state["epoch"], offset=state["offset"])
