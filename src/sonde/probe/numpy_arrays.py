"""Numpy arrays for the probe: block-wise statistics, a hash of the content, and .npy files.

Any dtype and strides; object arrays are described but never written. A block of a million values
stays in the cache while numpy computes each statistic. Sums are accurate: float32 values are summed
in rows of 1,024 and the row sums are added in float64. Three cases are computed in float64
throughout: values whose squares would overflow or underflow their dtype, blocks with non-finite
values, and arrays shorter than a row. The hash is msprobe's CRC-32 or 128-bit xxh3. CPU time for
float32, in ms: 0.009 for 1K values, 0.33 for 1M, 32 for 64M (benchmarks/probe.py).

`Moments` are the statistics, for tensors of every framework. They cover the *finite* values,
accumulated in float64, plus counts of the non-finite ones. The raw statistics (what a plain max,
min, mean and norm would return, including NaN) follow from them without a second pass.

The written Max, Min, Mean and Norm are raw, as in msprobe's format. Mean and Norm of floats of at
most 32 bits are rounded to float32 to match msprobe's digits; those of integers and float64 stay
float64. Nonzero counts (`num_nan`, `num_inf`, `num_zero`) are added, so an ordinary tensor has
exactly msprobe's keys.
"""

import functools
import importlib
import math
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from sonde.probe.settings import MD5, XXH3
from sonde.probe.walk import Later, Leaf, Notify

NAME = ""
SUFFIX = "npy"

STATISTICS: Final = ("Max", "Min", "Mean", "Norm")
_UNKNOWN: Final = dict.fromkeys(STATISTICS)

_TWO_FLOATS: Final = struct.Struct("<2f")  # the standard size raises when a number does not fit
BLOCK: Final = 1 << 20
ROW: Final = 1 << 10
_SAFE: Final = {np.dtype(np.float32): (1e-12, 1e15), np.dtype(np.float64): (1e-140, 1e140)}
"""The range in which the largest magnitude of a block must lie for its squares to be summed without
scaling.
"""
_ONES: Final = np.ones(ROW, np.float32)

ContentHash: TypeAlias = Any
"""A hash as in hashlib, fed with the bytes in the order of the values."""


class Moments(NamedTuple):
    """Statistics of `num` values from one pass. If none is finite, `max` is -inf and `min` is
    inf.
    """

    num: int = 0
    max: float = -math.inf
    min: float = math.inf
    sum: float = 0.0
    norm: float = 0.0
    num_nan: int = 0
    num_plus_inf: int = 0
    num_minus_inf: int = 0
    num_zero: int = 0


def new_leaf(kind: str, dtype: str, shape: Iterable[int]) -> Leaf:
    """Return a leaf whose statistics are not filled in yet."""
    return {"type": kind, "dtype": dtype, "shape": list(shape), **_UNKNOWN}


def add(a: Moments, b: Moments) -> Moments:
    """Return the moments of two arrays combined."""
    counts = [left + right for left, right in zip(a[5:], b[5:], strict=True)]
    norm = math.hypot(a.norm, b.norm)
    return Moments(
        a.num + b.num, max(a.max, b.max), min(a.min, b.min), a.sum + b.sum, norm, *counts
    )


def add_zeros(moments: Moments, num_zeros: int) -> Moments:
    """Return the moments with `num_zeros` more zeros: those that a sparse tensor does not store."""
    return add(moments, Moments(num_zeros, 0.0, 0.0, num_zero=num_zeros)) if num_zeros else moments


def write_statistics(
    leaf: Leaf, moments: Moments, *, is_mask: bool = False, single: bool = False
) -> None:
    """Fill in the statistics of `leaf`; `single` rounds Mean and Norm to float32.

    A mask has no Mean and no Norm; as in msprobe, its Max is any and its Min is all.
    """
    num, largest, smallest, total, norm, num_nan, num_plus_inf, num_minus_inf, num_zero = moments
    num_inf = num_plus_inf + num_minus_inf
    num_finite = num - num_nan - num_inf
    finite: Leaf = _UNKNOWN
    if is_mask:
        finite = {"Max": bool(largest), "Min": bool(smallest)} if num else {}
    elif num_finite:
        mean = total / num_finite
        if single:
            try:
                mean, norm = _TWO_FLOATS.unpack(_TWO_FLOATS.pack(mean, norm))
            except OverflowError:
                pass  # the norm of large float32 values may need float64
        finite = {"Max": largest, "Min": smallest, "Mean": mean, "Norm": norm}
    if num_nan:
        leaf |= dict.fromkeys(STATISTICS, math.nan)
    elif num_inf:
        leaf["Max"] = math.inf if num_plus_inf else largest
        leaf["Min"] = -math.inf if num_minus_inf else smallest
        leaf["Mean"] = leaf["Max"] + leaf["Min"]  # NaN if there are infinities of both signs
        leaf["Norm"] = math.inf
    else:
        leaf |= finite
    if num_finite < num:
        leaf["finite"] = dict(finite)
    if num_zero or num_finite < num:
        counts = {"num_nan": num_nan, "num_inf": num_inf, "num_zero": num_zero}
        leaf |= {name: count for name, count in counts.items() if count}


class _Crc32:
    """msprobe's hash."""

    def __init__(self) -> None:
        self._crc = 0

    def update(self, piece: Buffer, /) -> None:
        self._crc = zlib.crc32(piece, self._crc)

    def hexdigest(self) -> str:
        return f"{self._crc:08x}"


def new_hash(hashing: str) -> ContentHash | None:
    """Return a hash of the given kind; None if only statistics are asked for."""
    if hashing == XXH3:
        return importlib.import_module("xxhash").xxh3_128()
    return _Crc32() if hashing == MD5 else None


def measure(array: npt.NDArray[Any], content: ContentHash | None = None) -> Moments:
    """Return the moments of a numeric array, feeding each block's bytes to `content` while they are
    in the cache.
    """
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    # Shared by all blocks: allocating a new one each time would cost more than the count.
    is_zero = np.empty(min(array.size, BLOCK), np.bool_)
    found = []
    start = 0
    while start < array.size:
        size = min(array.size - start, BLOCK)
        end = start + (size - size % ROW or size)  # whole rows first, then the remainder
        block = np.ascontiguousarray(flat[start:end])
        if not block.dtype.isnative:
            block = block.astype(block.dtype.newbyteorder("="))
        found.append(_moments(block, is_zero))
        if content is not None:
            content.update(block.data)
        start = end
    return functools.reduce(add, found or [Moments()])


def _moments(block: npt.NDArray[Any], is_zero: npt.NDArray[np.bool_]) -> Moments:
    values = block if block.dtype in _SAFE and block.size >= ROW else _converted(block)
    is_short = values.size < ROW  # a call costs more than a pass over so few values
    if is_short:
        # NaN if there is one
        smallest = values.item(values.argmin())
        largest = values.item(values.argmax())
    else:
        smallest = float(np.minimum.reduce(values))
        largest = float(np.maximum.reduce(values))
    counts = (0, 0, 0)
    if not (math.isfinite(largest) and math.isfinite(smallest)):
        bad = values[~np.isfinite(values)]
        counts = (int(np.isnan(bad).sum()), int((bad == np.inf).sum()), int((bad == -np.inf).sum()))
        values = values[np.isfinite(values)].astype(np.float64)
        if not values.size:
            return Moments(block.size, -math.inf, math.inf, 0.0, 0.0, *counts)
        smallest = float(values.min())
        largest = float(values.max())
    num_zero = 0
    if is_short:
        num_zero = values.size - int(np.count_nonzero(values))
    elif smallest <= 0.0 <= largest:
        num_zero = int(np.count_nonzero(np.equal(values, 0, out=is_zero[: values.size])))
    scale = max(-smallest, largest)
    low, high = _SAFE[values.dtype]
    if low < scale < high or not scale:
        total, squares = _sums(values)
        norm = math.sqrt(squares)
    else:
        total, squares = _sums(values.astype(np.float64) / scale)
        total = scale * total
        norm = scale * math.sqrt(squares)
    if block.dtype.kind in "bui":  # a float64 cannot hold every int64
        smallest = int(block.min())
        largest = int(block.max())
    return Moments(block.size, largest, smallest, total, norm, *counts, num_zero)


def _sums(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Return the sum of the values and the sum of their squares."""
    if values.dtype == np.float64:
        return float(np.add.reduce(values)), float(values.dot(values))
    rows = values.reshape(-1, ROW)
    sums = np.empty((2, len(rows)), np.float32)
    np.matmul(rows, _ONES, out=sums[0])
    np.matmul(rows[:, None], rows[:, :, None], out=sums[1, :, None, None])
    total, squares = np.add.reduce(sums, axis=1, dtype=np.float64).tolist()
    return total, squares


def _converted(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert numbers to floats that can be summed accurately; complex numbers become their
    magnitudes.
    """
    if block.dtype.kind == "c":
        with np.errstate(all="ignore"):
            return np.abs(block.astype(np.complex128))
    return block.astype(
        np.float32 if block.dtype == np.float16 and block.size >= ROW else np.float64
    )


def describe(array: npt.NDArray[Any], hashing: str, laters: list[Later]) -> Leaf:
    """Return the leaf for the current value of an array."""
    del laters
    leaf = new_leaf("numpy.ndarray", str(array.dtype), array.shape)
    if array.dtype.kind in "biufc":
        measure_into(leaf, array, hashing)
    return leaf


def measure_into(leaf: Leaf, array: npt.NDArray[Any], hashing: str) -> None:
    """Fill in the statistics and the hash of a numeric array."""
    kind = array.dtype.kind
    content = new_hash(hashing)
    moments = measure(array, content)
    write_statistics(
        leaf, moments, is_mask=kind == "b", single=kind in "fc" and array.real.itemsize <= 4
    )
    if content is not None:
        leaf[hashing] = content.hexdigest()


def on_gradient(array: npt.NDArray[Any], notify: Notify) -> Any:
    """Return None: arrays have no gradients."""
    del array, notify


def write(array: npt.NDArray[Any], path: Path) -> bool:
    """Write the array as .npy. Return False if it has no values, or values that only pickle could
    write.
    """
    if not array.size or array.dtype.hasobject:
        return False
    np.save(path, array, allow_pickle=False)
    return True


def read(path: Path) -> Any:
    """Load an array from a file."""
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise OSError(f"{path} is no array file: {error}") from error
