"""Orders that depend on a seed, an epoch and nothing else: not on ranks, workers or where a run was resumed.

Random bits come straight from the PCG64 generator and are sorted, a rule that stands in this file in full: no later version
of numpy can shuffle differently.

Cost: ordering 10 million pairs by two lengths, ties shuffled, takes about 0.35 CPU-seconds (benchmarks/data.py).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.errors import SettingError

_TIE_BITS: Final = 16


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
