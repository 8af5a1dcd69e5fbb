"""The statistics of an array, how to merge two of them, and how they are written in msprobe's format.

`Moments` cover the *finite* values, accumulated in float64, plus counts of the non-finite ones. The raw statistics
(what a plain max, min, mean and norm would return, including NaN) follow from them without a second pass.

The written Max, Min, Mean and Norm are raw. Mean and Norm of floats of at most 32 bits are rounded to float32 to match
msprobe's digits; those of integers and float64 stay float64. Nonzero counts (`num_nan`, `num_inf`, `num_zero`) are
added, so an ordinary tensor has exactly msprobe's keys.
"""

import math
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

Leaf: TypeAlias = dict[str, Any]
"""One saved tensor or scalar, as it appears in debug.json."""

STATISTICS: Final = ("Max", "Min", "Mean", "Norm")
_UNKNOWN: Final = dict.fromkeys(STATISTICS)

_TWO_FLOATS: Final = struct.Struct("<2f")  # the standard size raises when a number does not fit


class Moments(NamedTuple):
    """Statistics of `num` values from one pass. `max` and `min` are None if no value is finite."""

    num: int
    max: float | None
    min: float | None
    sum: float
    norm: float
    num_nan: int = 0
    num_plus_inf: int = 0
    num_minus_inf: int = 0
    num_zero: int = 0

    @property
    def num_finite(self) -> int:
        """The number of finite values."""
        return self.num - self.num_nan - self.num_plus_inf - self.num_minus_inf


NOTHING: Final = Moments(0, None, None, 0.0, 0.0)
"""The moments of an empty array."""


def new_leaf(kind: str, dtype: str, shape: Iterable[int]) -> Leaf:
    """Return a leaf whose statistics are not filled in yet."""
    return {"type": kind, "dtype": dtype, "shape": list(shape), **_UNKNOWN}


def add(a: Moments, b: Moments) -> Moments:
    """Return the moments of two arrays combined."""
    if not a.num or not b.num:
        return a if a.num else b
    return Moments(
        a.num + b.num,
        b.max if a.max is None else a.max if b.max is None else max(a.max, b.max),
        b.min if a.min is None else a.min if b.min is None else min(a.min, b.min),
        a.sum + b.sum,
        math.hypot(a.norm, b.norm),
        *(left + right for left, right in zip(a[5:], b[5:], strict=True)),
    )


def add_zeros(moments: Moments, num_zeros: int) -> Moments:
    """Return the moments with `num_zeros` more zeros: those that a sparse tensor does not store."""
    return add(moments, Moments(num_zeros, 0.0, 0.0, 0.0, 0.0, num_zero=num_zeros))


def write_statistics(leaf: Leaf, moments: Moments, *, is_mask: bool = False, single: bool = False) -> None:
    """Fill in the statistics of `leaf`; `single` rounds Mean and Norm to float32.

    A mask has no Mean and no Norm; as in msprobe, its Max is any and its Min is all.
    """
    num, largest, smallest, total, norm, num_nan, num_plus_inf, num_minus_inf, num_zero = moments
    num_inf = num_plus_inf + num_minus_inf
    if is_mask:
        leaf |= {"Max": bool(largest), "Min": bool(smallest)} if num else {}
    elif not num_nan and not num_inf:
        leaf["Max"] = largest
        leaf["Min"] = smallest
        if num:
            mean = total / num
            if single:
                try:
                    mean, norm = _TWO_FLOATS.unpack(_TWO_FLOATS.pack(mean, norm))
                except OverflowError:
                    pass  # the norm of large float32 values may need float64
            leaf["Mean"] = mean
            leaf["Norm"] = norm
    else:
        _write_not_finite(leaf, moments, single=single)
        leaf |= {name: num for name, num in (("num_nan", num_nan), ("num_inf", num_inf)) if num}
    if num_zero:
        leaf["num_zero"] = num_zero


def _write_not_finite(leaf: Leaf, moments: Moments, *, single: bool) -> None:
    """Fill in the raw statistics of values that are not all finite, and the statistics of the finite ones."""
    finite: Leaf = dict(_UNKNOWN)
    if moments.num_finite:
        just_finite = moments._replace(num=moments.num_finite, num_nan=0, num_plus_inf=0, num_minus_inf=0)
        write_statistics(finite, just_finite, single=single)
    has_plus, has_minus = moments.num_plus_inf > 0, moments.num_minus_inf > 0
    if moments.num_nan:
        leaf["Max"] = leaf["Min"] = leaf["Mean"] = leaf["Norm"] = math.nan
    else:
        leaf["Max"] = math.inf if has_plus else -math.inf if finite["Max"] is None else finite["Max"]
        leaf["Min"] = -math.inf if has_minus else math.inf if finite["Min"] is None else finite["Min"]
        leaf["Mean"] = math.nan if has_plus and has_minus else math.inf if has_plus else -math.inf
        leaf["Norm"] = math.inf
    leaf["finite"] = {name: finite[name] for name in STATISTICS}
