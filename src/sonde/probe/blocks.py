"""The statistics of an array in memory, block by block.

A block of 256 Ki values stays in the cache while numpy goes over it for each number. Sums are accurate: those of float32 are taken over rows
of 1,024 values and added up in float64. Values so large or small that their squares leave float32, blocks in which something is
not finite, and less than a row are taken in float64. CPU ms for float32 here: 0.008 for 1K values, 0.34 for 1M, 30 for 64M (benchmarks/probe.py).
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
_ONES: Final = {dtype: np.ones(_ROW, dtype) for dtype in _SAFE}


def measure(array: npt.NDArray[Any], content: ContentHash | None = None) -> Moments:
    """The moments of a flat contiguous array of numbers; `content` is given the bytes of each block while it is in the cache."""
    dtype = np.dtype(np.float32) if array.dtype == np.float16 else array.dtype
    num_in_rows = array.size - array.size % _ROW if dtype in _SAFE else 0
    moments = _rows(array[:num_in_rows], dtype, content) if num_in_rows else NOTHING
    for start in range(num_in_rows, array.size, _BLOCK):
        block = array[start : start + _BLOCK]
        moments = add(moments, _in_float64(block))
        if content is not None:
            content.update(block.data)
    return moments


def _rows(array: npt.NDArray[Any], dtype: np.dtype[Any], content: ContentHash | None) -> Moments:
    """Whole rows of floats. What cannot be added up as it is leaves zeros in `sums` and `squares`, and is taken in float64."""
    low, high = _SAFE[dtype]
    sums, squares = np.zeros((2, array.size // _ROW), dtype)
    is_zero = np.empty(min(array.size, _BLOCK), np.bool_)
    num = num_zero = 0
    largest, smallest = -math.inf, math.inf
    others = NOTHING
    for start in range(0, array.size, _BLOCK):
        block = array[start : start + _BLOCK]
        if content is not None:
            content.update(block.data)
        block = block.astype(dtype, copy=False)
        least, most = float(np.minimum.reduce(block)), float(np.maximum.reduce(block))  # NaN if there is one
        if not low < max(-least, most) < high and (least or most):
            others = add(others, _in_float64(block))
            continue
        num += block.size
        largest, smallest = max(largest, most), min(smallest, least)
        if least <= 0.0 <= most and np.equal(block, 0, out=is_zero[: block.size]).any():
            num_zero += int(np.count_nonzero(is_zero[: block.size]))
        rows, first = block.reshape(-1, _ROW), start // _ROW
        place = slice(first, first + len(rows))
        np.matmul(rows, _ONES[dtype], out=sums[place])
        np.matmul(rows[:, None], rows[:, :, None], out=squares[place, None, None])
    if not num:
        return others
    total, norm = float(sums.sum(dtype=np.float64)), math.sqrt(float(squares.sum(dtype=np.float64)))
    return add(Moments(num, largest, smallest, total, norm, num_zero=num_zero), others)


def _in_float64(block: npt.NDArray[Any]) -> Moments:
    """Any numbers, complex ones by their size."""
    values = block.astype(np.float64) if block.dtype in _SAFE else _converted(block)
    smallest, largest = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))  # NaN if there is one
    counts = (0, 0, 0)
    if not (math.isfinite(largest) and math.isfinite(smallest)):
        bad = values[~np.isfinite(values)]
        counts = (int(np.isnan(bad).sum()), int((bad == np.inf).sum()), int((bad == -np.inf).sum()))
        values = values[np.isfinite(values)]
        if not values.size:
            return Moments(block.size, None, None, 0.0, 0.0, *counts)
        smallest, largest = float(values.min()), float(values.max())
    num_zero = values.size - int(np.count_nonzero(values))
    scale, (low, high) = max(-smallest, largest), _SAFE[values.dtype]
    if low < scale < high or not scale:
        total, norm = float(np.add.reduce(values)), math.sqrt(float(values.dot(values)))
    else:
        scaled = values / scale
        total, norm = scale * float(scaled.sum()), scale * math.sqrt(float(scaled.dot(scaled)))
    if block.dtype.kind in "bui":  # a float64 cannot hold every int64
        smallest, largest = int(block.min()), int(block.max())
    return Moments(block.size, largest, smallest, total, norm, *counts, num_zero)


@np.errstate(all="ignore")
def _converted(block: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.abs(block.astype(np.complex128)) if block.dtype.kind == "c" else block.astype(np.float64)
