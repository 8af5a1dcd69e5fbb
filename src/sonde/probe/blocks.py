"""The same statistics as one_pass.c, in numpy: the way without a compiler, and the second opinion in the tests.

The array is taken in blocks of 32 Ki values, so that every block is read from memory once and its float64 copy stays in the
cache. About 10x slower than the compiled kernel (benchmarks/probe.py).
"""

import ctypes
import math
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from sonde.probe.compiled import FLOATS, INTEGERS, Measure
from sonde.probe.moments import NOTHING, Moments, add

_BLOCK: Final = 1 << 15


def measures() -> dict[str, Measure]:
    """A measuring function per dtype, as `compiled.load` gives them."""
    return {name: _measure(name) for name in (*FLOATS, *INTEGERS)}


def moments_of(values: npt.NDArray[np.float64]) -> Moments:
    """The moments of one block of float64 values."""
    num = int(values.size)
    num_nan = num_plus = num_minus = 0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = float(np.dot(values, values))
        if not math.isfinite(squares):  # something is not finite, or a square is too large
            finite = np.isfinite(values)
            num_nan = int(np.count_nonzero(np.isnan(values)))
            num_plus = int(np.count_nonzero(values == np.inf))
            num_minus = num - int(np.count_nonzero(finite)) - num_nan - num_plus
            values = values[finite]
            squares = float(np.dot(values, values))
        if not values.size:
            return Moments(num, None, None, 0.0, 0.0, num_nan, num_plus, num_minus, 0)
        largest, smallest, total = float(values.max()), float(values.min()), float(values.sum())
        norm, scale = math.sqrt(squares), max(abs(largest), abs(smallest))
        if scale and not 1e-140 < norm < 1e150:
            scaled = values / scale
            norm = scale * math.sqrt(float(np.dot(scaled, scaled)))
    num_zero = int(values.size - np.count_nonzero(values))
    return Moments(num, largest, smallest, total, norm, num_nan, num_plus, num_minus, num_zero)


def _measure(name: str) -> Measure:
    dtype = np.dtype("uint16" if name == "bfloat16" else name)
    is_integer = name in INTEGERS

    def measure(address: int, num: int, crc: int | None) -> tuple[Moments, int | None]:
        if not num:
            return NOTHING, crc
        memory = (ctypes.c_char * (num * dtype.itemsize)).from_address(address)
        array = np.frombuffer(memoryview(memory).cast("B"), dtype)
        total = NOTHING
        for start in range(0, num, _BLOCK):
            block = array[start : start + _BLOCK]
            moments = moments_of(_as_float64(block, name))
            if is_integer:  # a float64 cannot hold every int64
                moments = moments._replace(max=int(block.max()), min=int(block.min()))
            total = add(total, moments)
            if crc is not None:
                crc = zlib.crc32(block.data, crc)
        return total, crc

    return measure


def _as_float64(block: npt.NDArray[np.generic], name: str) -> npt.NDArray[np.float64]:
    if name == "bfloat16":
        block = (block.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        return block.astype(np.float64)
