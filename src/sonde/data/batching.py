"""Batches under a token budget, and orders that depend on a seed, an epoch and nothing else.

Samples are ordered by length and cut, greedily, into batches whose padded size (longest sample x number of samples) stays
within `max_tokens`. The semantics are fairseq's `batch_by_size`, the last batch included: a batch ends before the sample
that would pass a limit, and when it has more than `multiple_of` samples it is cut back to a multiple of that, the rest
beginning the next batch.

An order does not depend on ranks, workers or where a run was resumed. Random bits come straight from the PCG64 generator and are
sorted, a rule that stands in this file in full: no later version of numpy can shuffle differently.

Cost: 10 million lengths, ordering included, in about 0.8 CPU-seconds (benchmarks/data.py). Sorted lengths come in runs of
equal value, and the loop below takes whole runs; a batch costs it about a microsecond.

`ShardedBatchSampler` says which batches a rank takes, and in which order: a `batch_sampler` for any DataLoader. The order of an epoch is a shuffle of all batches by (seed, epoch),
the same on every rank. In each round rank k of S takes the k-th of the next S batches; when the last round has fewer, the ranks that go without get an empty list, which the
collater turns into a batch of weight zero: every rank makes the same number of steps, and no sample is seen twice. Samples on a skip list are taken out of their batches; the batches
stay where they are, so that skipping moves nothing else. Starting in the middle costs what starting at the front costs: a shuffle of the batch numbers, milliseconds.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from sonde.errors import SettingError, check_at_least, check_choice

_UNLIMITED: Final = 1 << 62
_TIE_BITS: Final = 16
_VERSION: Final = 1


@final
@dataclass(frozen=True, slots=True)
class Batches:
    """Which samples go together. Behaves as a sequence of arrays of sample numbers; batches keep their place for ever."""

    samples: NDArray[np.int64]
    """Sample numbers, batch after batch."""
    bounds: NDArray[np.int64]
    """Where each batch begins in `samples`, and the end."""
    skipped: NDArray[np.int64]
    """Samples that are longer than the budget and in no batch, ascending."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, batch: int) -> NDArray[np.int64]:
        if not -len(self) <= batch < len(self):
            raise IndexError(f"there is no batch {batch}: there are {len(self)}")
        batch %= len(self)
        return self.samples[self.bounds[batch] : self.bounds[batch + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[batch] for batch in range(len(self)))

    @property
    def fingerprint(self) -> int:
        """A number that other batches do not have: a position in these batches means nothing in others."""
        return zlib.crc32(self.bounds.tobytes(), zlib.crc32(np.ascontiguousarray(self.samples).tobytes()))


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

    `lengths` has a row for each sample: (source, target), or one length. With `count="longest"` a pair counts as much as the
    longer of the two, with "target" as much as its target. A sample longer than `max_tokens` is an error, or is skipped
    and counted. With a seed, samples of equal lengths are shuffled before they are cut.
    """
    if lengths.ndim not in (1, 2) or (lengths.ndim == 2 and lengths.shape[1] != 2):
        raise SettingError(f"lengths must have the shape (N,) or (N, 2), not {lengths.shape}")
    check_choice(("longest", "target"), count=count)
    check_choice(("error", "skip"), too_long=too_long)
    if lengths.ndim == 1:
        cost = np.asarray(lengths)
        order = order_by_length(cost, seed=seed)
    else:
        source, target = np.ascontiguousarray(lengths[:, 0]), np.ascontiguousarray(lengths[:, 1])
        cost = np.maximum(source, target) if count == "longest" else target
        order = order_by_length(source, target, seed=seed)
    skipped = _too_long(cost, max_tokens, too_long)
    if len(skipped):
        order = order[cost[order] <= (max_tokens or 0)]
    bounds = cut_batches(cost[order], max_tokens, max_sentences, multiple_of)
    return Batches(order, bounds, skipped)


def cut_batches(
    cost: NDArray[np.integer], max_tokens: int | None, max_sentences: int | None = None, multiple_of: int = 1
) -> NDArray[np.int64]:
    """Where batches begin when samples of these costs are cut in the order they come, and the end.

    No cost may be above `max_tokens`. None is no limit.
    """
    budget = _UNLIMITED if max_tokens is None else max_tokens
    limit = _UNLIMITED if max_sentences is None else max_sentences
    check_at_least(1, max_tokens=int(budget), max_sentences=int(limit), multiple_of=int(multiple_of))
    num_samples = len(cost)
    ends = np.append(np.flatnonzero(np.diff(cost)) + 1, num_samples)
    values: list[int] = cost[ends - 1].tolist() if num_samples else []
    run_ends: list[int] = ends.tolist()
    bounds = [0] if num_samples else []
    start = run = 0
    while start < num_samples:
        while run_ends[run] <= start:
            run += 1
        last = run
        longest = values[last]
        room = min(limit, budget // longest if longest else _UNLIMITED)
        # Take whole runs while the next one's first sample still fits.
        while run_ends[last] < num_samples and run_ends[last] - start < room:
            longest = max(longest, values[last + 1])
            wider = min(limit, budget // longest if longest else _UNLIMITED)
            if run_ends[last] - start + 1 > wider:
                room = run_ends[last] - start
                break
            room = wider
            last += 1
        size = min(room, run_ends[last] - start)
        if size > multiple_of:
            size -= size % multiple_of
        start += size
        bounds.append(start)
    return np.array(bounds or [0], np.int64)


def padding_efficiency(lengths: NDArray[np.integer], batches: Batches) -> float:
    """The share of a padded batch that is real tokens, over all batches, for one side's lengths."""
    if len(batches.samples) == 0:
        return 1.0
    rows = np.asarray(lengths)[batches.samples].astype(np.int64)
    longest = np.maximum.reduceat(rows, batches.bounds[:-1])
    padded = int((longest * np.diff(batches.bounds)).sum())
    return float(rows.sum() / padded) if padded else 1.0


def _too_long(cost: NDArray[np.integer], max_tokens: int | None, policy: str) -> NDArray[np.int64]:
    if max_tokens is None or len(cost) == 0 or int(cost.max()) <= max_tokens:
        return np.zeros(0, np.int64)
    found = np.flatnonzero(cost > max_tokens)
    if policy == "error":
        raise SettingError(
            f"{len(found)} samples are longer than max_tokens = {max_tokens}",
            cause=f"sample {found[0]} has {cost[found[0]]} tokens"
            + (f", the longest {cost.max()}" if len(found) > 1 else ""),
            hint='raise max_tokens, or leave them out with too_long="skip"',
        )
    return found


def epoch_order(num_batches: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the batches in an epoch: a shuffle of 0 … num_batches-1."""
    return np.argsort(_random_bits(num_batches, seed, epoch), kind="stable").astype(np.int64, copy=False)


def order_by_length(
    source: NDArray[np.integer], target: NDArray[np.integer] | None = None, *, seed: int | None = None
) -> NDArray[np.int64]:
    """Sample numbers as two stable sorts give them, by target and then by source length: source is the primary key.

    Where both are equal they keep their order or, with a seed, are shuffled: neighbours in the corpus are then not
    neighbours in a batch.
    """
    num_samples = len(source)
    keys = [source] if target is None else [source, target]
    if num_samples == 0:
        return np.zeros(0, np.int64)
    smallest = min(int(key.min()) for key in keys)
    if smallest < 0:
        raise SettingError(f"a length is negative: {smallest}")
    ties = None
    if seed is not None:
        ties = _random_bits((num_samples + 3) // 4, seed).view(np.uint16)[:num_samples]
    widths = [int(key.max()).bit_length() for key in keys]
    index_width = num_samples.bit_length()
    tie_width = 0 if ties is None else min(_TIE_BITS, 64 - sum(widths) - index_width)
    if sum(widths) + index_width > 64 or (ties is not None and tie_width < _TIE_BITS // 2):
        return np.lexsort((*(() if ties is None else (ties,)), *reversed(keys)))
    # One number holds it all: source, target, tie, sample. Numpy sorts plain numbers 5 times faster than it argsorts.
    packed = np.zeros(num_samples, np.uint64)
    for key, width in zip(keys, widths, strict=True):
        packed <<= np.uint64(width)
        packed |= key.astype(np.uint64)
    if ties is not None:
        packed <<= np.uint64(tie_width)
        packed |= (ties >> np.uint16(_TIE_BITS - tie_width)).astype(np.uint64)
    packed <<= np.uint64(index_width)
    packed |= np.arange(num_samples, dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << index_width) - 1)
    return packed.view(np.int64)


def _random_bits(count: int, seed: int, epoch: int | None = None) -> NDArray[np.uint64]:
    if seed < 0 or (epoch is not None and epoch < 0):
        raise SettingError(f"seed and epoch are 0 or more, not {seed} and {epoch}")
    entropy = [seed] if epoch is None else [seed, epoch]
    bits = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count)
    return np.asarray(bits, np.uint64).reshape(count)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a run stands in its data: the next batch, by epoch and by batches done over all ranks together.

    All ranks hold the same position. It does not say how many ranks there are, so that a run may resume with another number of them.
    """

    epoch: int = 1
    """Epochs count from 1."""
    offset: int = 0
    """Batches of this epoch that are done, over all ranks."""

    def __post_init__(self) -> None:
        if self.epoch < 1 or self.offset < 0:
            raise SettingError(f"epochs count from 1 and batches from 0, not from {self.epoch} and {self.offset}")

    def after_round(self, num_shards: int, num_batches: int) -> "Position":
        """The position when every rank has taken one batch more; past the last batch it is the start of the next epoch."""
        offset = self.offset + num_shards
        if offset >= num_batches:
            return Position(epoch=self.epoch + 1)
        return Position(epoch=self.epoch, offset=offset)


@final
class ShardedBatchSampler:
    """The batches of one rank for the rest of the epoch at `position`. Iterating does not move the position.

    (A DataLoader asks for batches ahead of their use; only who uses them knows where a run stands. `TokenLoader` does.)
    """

    def __init__(
        self,
        batches: Batches,
        *,
        seed: int = 1,
        shuffle: bool = True,
        num_shards: int = 1,
        shard_id: int = 0,
        left_out: NDArray[np.int64] | None = None,
    ) -> None:
        if not 0 <= shard_id < num_shards:
            raise SettingError(f"there is no shard {shard_id} of {num_shards}", hint="shards count from 0")
        self.batches = batches
        """All batches of all ranks."""
        self.num_shards = num_shards
        """Ranks that share an epoch."""
        self.shard_id = shard_id
        """This one."""
        self.position = Position()
        """Where iteration starts."""
        self._seed = seed
        self._fingerprint = batches.fingerprint  # reads every sample number: once, not at each checkpoint
        self._shuffle = shuffle
        self.left_out = np.unique(left_out) if left_out is not None else np.zeros(0, np.int64)
        """Samples that are taken out of their batches; may be set between two batches."""

    def __len__(self) -> int:
        """Rounds left in the epoch."""
        return (len(self.batches) - self.position.offset + self.num_shards - 1) // self.num_shards

    def __iter__(self) -> Iterator[list[int]]:
        order = self.global_order(self.position.epoch)
        first = self.position.offset
        for round_start in range(first, len(order), self.num_shards):
            mine = round_start + self.shard_id
            yield self._samples(int(order[mine])) if mine < len(order) else []

    def global_order(self, epoch: int) -> NDArray[np.int64]:
        """The order of all batches in an epoch."""
        if not self._shuffle:
            return np.arange(len(self.batches), dtype=np.int64)
        return epoch_order(len(self.batches), seed=self._seed, epoch=epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch (from 1)."""
        self.position = Position(epoch=epoch)

    def advance(self) -> None:
        """Note that every rank has used one batch more."""
        self.position = self.position.after_round(self.num_shards, len(self.batches))

    def state_dict(self) -> dict[str, int]:
        """The position and what it is a position in: a few integers, the same on every rank."""
        return {
            "version": _VERSION,
            "epoch": self.position.epoch,
            "offset": self.position.offset,
            "seed": self._seed,
            "num_batches": len(self.batches),
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position, with any number of ranks; refused when data, budget or seed are not those it was taken in."""
        own = self.state_dict()
        if state.keys() != own.keys() or state["version"] != _VERSION:
            raise SettingError(f"this is not the state of a batch sampler: it has {', '.join(state)}")
        for name in ("num_batches", "fingerprint", "seed"):
            if state[name] != own[name]:
                raise SettingError(
                    f"cannot resume: {name} was {state[name]} and is now {own[name]}",
                    cause="the position belongs to other batches",
                    hint="use the data, max_tokens, max_sentences, multiple_of and seed of the run, or start an epoch "
                    f"afresh with set_epoch({state['epoch'] + 1})",
                )
        if state["offset"] >= max(1, len(self.batches)):
            raise SettingError(f"cannot resume at batch {state['offset']} of {len(self.batches)}")
        self.position = Position(epoch=state["epoch"], offset=state["offset"])

    def _samples(self, batch: int) -> list[int]:
        samples = self.batches[batch]
        if len(self.left_out):
            samples = samples[~np.isin(samples, self.left_out)]
        result: list[int] = samples.tolist()
        return result
