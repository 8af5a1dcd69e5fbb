"""Sums of floats without rounding: whole numbers of one tiny unit.

Every finite float is a whole multiple of 2**-1074, so a sum of floats can be kept as one Python integer (`units`, here of
2**-1126, which leaves room for the shifts a tensor needs: see `tensors.py`). Integer addition does not care about order
or grouping: the sum of a stream is the same number whether one process saw it all or eight ranks saw a part each, and it is
rounded to a float once, when it is read.

`limbs` cuts the integer into digits that fit an int64 with room to spare, so that a plain SUM over ranks adds exactly.

Costs: `units_of_sum` of 256 floats takes about 20 µs of CPU here, 0.08 µs a float; it lets C add (`math.fsum`) and asks only for
the error that was left.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Final

SCALE_BITS: Final = 1126
"""One unit is 2**-SCALE_BITS."""

LIMB_BITS: Final = 32
"""Bits of one limb; an int64 then has room for 2**31 limbs to be added to it."""

LIMBS: Final = 70
"""Limbs of one sum: 2240 bits, enough for 2**60 of the largest float."""

_ONE: Final = 1 << SCALE_BITS
_LIMB_MASK: Final = (1 << LIMB_BITS) - 1


def units_of(value: float) -> int:
    """A finite float or an integer, as a whole number of units."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << (SCALE_BITS + 1 - denominator.bit_length())


def units_of_sum(values: Sequence[float]) -> int:
    """The exact sum of finite floats. Raises ValueError or OverflowError when one of them is not finite."""
    try:
        rounded = math.fsum(values)
    except OverflowError:  # the values are finite but a partial sum is not
        return sum(map(units_of, values))
    units = units_of(rounded)
    if len(values) == 1:
        return units
    # What rounding left out is itself a sum of floats; two or three rounds find all of it.
    rest = [*values, -rounded]
    while missed := math.fsum(rest):
        units += units_of(missed)
        rest.append(-missed)
    return units


def nearest_float(units: int) -> float:
    """The float nearest to the sum; infinite when it is beyond the largest."""
    return ratio(units, _ONE)


def ratio(units: int, divisor_units: int) -> float:
    """The float nearest to the quotient of two sums; the divisor is not zero."""
    try:
        return units / divisor_units
    except OverflowError:
        return math.inf if (units < 0) == (divisor_units < 0) else -math.inf


def to_floats(units: int) -> list[float]:
    """Few floats whose exact sum is `units`, largest first: how a sum is stored. The opposite of `from_floats`."""
    floats = []
    while units:
        piece = max(-sys.float_info.max, min(sys.float_info.max, nearest_float(units)))
        floats.append(piece)
        units -= units_of(piece)
    return floats


def from_floats(floats: Iterable[float]) -> int:
    """The sum that `to_floats` stored."""
    return sum(units_of(float(piece)) for piece in floats)


def limbs(units: int) -> list[int]:
    """The sum as LIMBS integers, least significant first, each with the sign of the sum."""
    sign, magnitude = (-1, -units) if units < 0 else (1, units)
    return [sign * ((magnitude >> place) & _LIMB_MASK) for place in range(0, LIMBS * LIMB_BITS, LIMB_BITS)]


def from_limbs(digits: Iterable[int]) -> int:
    """The sum of limbs, whatever their sign and however many were added up in each."""
    return sum(digit << (LIMB_BITS * index) for index, digit in enumerate(digits) if digit)
