"""The statistics of an array in memory, block by block.

A block of 256 Ki values stays in the cache while numpy goes over it for each number. Sums are accurate: those of float32 are taken over rows
of 1,024 values and added up in float64. Values so large or small that their squares leave float32, and blocks in which something is
not finite, are taken again in float64. CPU ms for float32 here: 0.012 for 1K values, 0.47 for 1M, 45 for 64M (benchmarks/probe.py).
"""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sonde.probe.hashing import ContentHash
from sonde.probe.moments import NOTHING, Moments, add

_BLOCK: Final = 1 << 18
_ROW: Final = 1 << 10
_SAFE: Final = {np.dtype(np.float32): (1e-12, 1e15), np.dtype(np.float64): (1e-140, 1e140)}
"""Between which sizes the largest value may lie for the squares of a block to be added up as they are."""
_ONES: Final = {dtype: np.ones((_ROW, 1), dtype) for dtype in _SAFE}


def measure(array: npt.NDArray[Any], content: ContentHash | None = None) -> Moments:
    """The moments of a flat contiguous array of numbers; `content` is given the bytes of each block while it is in the cache."""
    total = NOTHING
    for start in range(0, array.size, _BLOCK):
        block = array[start : start + _BLOCK]
        total = add(total, _moments(block)) if start else _moments(block)
        if content is not None:
            content.update(block.data)
    return total


def _moments(block: npt.NDArray[Any]) -> Moments:
    kind = block.dtype.kind
    if kind == "c":
        block = np.abs(block.astype(np.complex128))
    elif kind in "bui":
        # A float64 cannot hold every int64.
        return _in_float64(block.astype(np.float64))._replace(max=int(block.max()), min=int(block.min()))
    elif block.dtype == np.float16:
        block = block.astype(np.float32)
    if block.dtype not in _SAFE:  # long double
        return _in_float64(block.astype(np.float64))
    smallest, largest = float(np.minimum.reduce(block)), float(np.maximum.reduce(block))  # NaN if there is one
    low, high = _SAFE[block.dtype]
    if not low < max(-smallest, largest) < high and (smallest or largest):
        return _in_float64(block.astype(np.float64))
    num_zero = int(np.count_nonzero(block == 0)) if smallest <= 0.0 <= largest else 0
    return Moments(block.size, largest, smallest, *_sums(block), num_zero=num_zero)


def _sums(block: npt.NDArray[Any]) -> tuple[float, float]:
    """The sum and the norm of finite values whose squares do not overflow."""
    num_in_rows = block.size - block.size % _ROW
    rest = block[num_in_rows:].astype(np.float64)
    total, squares = float(np.add.reduce(rest)), float(np.dot(rest, rest))
    if num_in_rows:
        rows = block[:num_in_rows].reshape(-1, 1, _ROW)
        total += float((rows @ _ONES[block.dtype]).sum(dtype=np.float64))
        squares += float((rows @ rows.reshape(-1, _ROW, 1)).sum(dtype=np.float64))
    return total, math.sqrt(squares)


@np.errstate(all="ignore")
def _in_float64(values: npt.NDArray[np.float64]) -> Moments:
    num = int(values.size)
    finite = np.isfinite(values)
    num_nan = int(np.count_nonzero(np.isnan(values)))
    num_plus = int(np.count_nonzero(values == np.inf))
    num_minus = num - int(np.count_nonzero(finite)) - num_nan - num_plus
    if num_nan or num_plus or num_minus:
        values = values[finite]
    if not values.size:
        return Moments(num, None, None, 0.0, 0.0, num_nan, num_plus, num_minus, 0)
    largest, smallest, total = float(values.max()), float(values.min()), float(values.sum())
    scale = max(abs(largest), abs(smallest)) or 1.0
    low, high = _SAFE[values.dtype]
    if low < scale < high:
        norm = math.sqrt(float(np.dot(values, values)))
    else:
        scaled = values / scale
        norm = scale * math.sqrt(float(np.dot(scaled, scaled)))
    num_zero = int(values.size - np.count_nonzero(values))
    return Moments(num, largest, smallest, total, norm, num_nan, num_plus, num_minus, num_zero)
