"""Compare two dumps: what differs, by how much, and where the difference began.

Entries are matched by key and compared in the order in which the first run saved them. Whole
tensors are compared value by value when both dumps have them. Otherwise hashes are compared, if
both dumps have the same kind and no tolerance was given; otherwise the statistics. Dtypes are
compared by kind, so torch.float32 matches MindSpore's Float32. An entry that is null on both sides
is "not compared". Reads files and has no other side effects.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard

import numpy as np

from sonde.errors import SettingError
from sonde.probe.dump import STREAM, Dump, find_dumps, read_dump
from sonde.probe.numpy_arrays import STATISTICS
from sonde.probe.walk import Leaf

SAME: Final = "same"
DIFFERENT: Final = "different"
NOT_COMPARED: Final = "not compared"

_HASHES: Final = ("xxh3", "md5")
_EXACT: Final = ("num_nan", "num_inf")
_BLOCK: Final = 1 << 20
_OURS_ALONE: Final = re.compile(r"\.(pass\d+|recompute)$")


_Leaves: TypeAlias = dict[tuple[str, ...], Leaf | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """How far apart two numbers may be: |a - b| <= absolute + relative * |b|. By default they must
    be equal.
    """

    relative: float = 0.0
    """Allowed difference as a fraction of the second value."""
    absolute: float = 0.0
    """Allowed difference in the units of the values."""

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.relative), ("atol", self.absolute)):
            if not value >= 0 or math.isinf(value):
                raise SettingError(f"{name} is {value!r}: it must be a number from 0 on")

    @property
    def is_exact(self) -> bool:
        """True if the two numbers must be equal."""
        return self.relative == 0 and self.absolute == 0

    def allows(self, a: float, b: float) -> bool:
        """Return whether two numbers are close enough. NaN matches NaN, and an infinity matches
        itself.
        """
        if a == b or (math.isnan(a) and math.isnan(b)):
            return True
        return (
            math.isfinite(a)
            and math.isfinite(b)
            and abs(a - b) <= self.absolute + self.relative * abs(b)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The outcome for one tensor or scalar that was compared between two dumps."""

    step: str
    process: str
    key: str
    verdict: str
    """SAME, DIFFERENT or NOT_COMPARED."""
    by: str
    """What was compared: tensor, hash, statistics, value, shape or dtype; or the reason why nothing
    was.
    """
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    cosine: float | None = None
    """Cosine similarity of whole tensors; None when only statistics were compared."""
    detail: str = ""
    """The first difference, as text."""


def compare_dumps(a: Path, b: Path, tolerance: Tolerance) -> list[Comparison]:
    """Return every comparison in execution order: by step, then rank, then key."""
    ours = find_dumps(a)
    theirs = find_dumps(b)
    # One dump each: compare them whatever they are called, rank against rank or step against step.
    if len(ours) == len(theirs) == 1:
        theirs = dict(zip(ours, theirs.values(), strict=True))
    places = dict.fromkeys([*ours, *theirs])
    return [
        comparison
        for place in places
        for comparison in _compare_pair(place, ours.get(place), theirs.get(place), tolerance)
    ]


def first_difference(comparisons: list[Comparison]) -> Comparison | None:
    """Return the first comparison that differs, or None."""
    return next((comparison for comparison in comparisons if comparison.verdict == DIFFERENT), None)


def _compare_pair(
    place: tuple[str, str], mine: Path | None, other: Path | None, tolerance: Tolerance
) -> list[Comparison]:
    step, process = place
    if mine is None or other is None:
        outcome = _verdict(False, f"not in the {'first' if mine is None else 'second'}", "missing")
        return [Comparison(step=step, process=process, key="", **outcome)]
    ours = read_dump(mine)
    theirs = read_dump(other)
    left = ours.leaves()
    right = theirs.leaves()
    if _has_old_keys(left) != _has_old_keys(right):
        left = _without_mark(left)
        right = _without_mark(right)
    found = []
    for key in dict.fromkeys([*left, *right]):
        if key in left and key in right:
            outcome = _compare_leaves((ours, left[key]), (theirs, right[key]), tolerance)
        else:
            missing, lacking = ("first", ours) if key in right else ("second", theirs)
            # msprobe keeps only one backward pass and does not record recomputed calls.
            is_ours = (lacking.directory / STREAM).is_file()  # msprobe writes no stream
            verdict = NOT_COMPARED if _OURS_ALONE.search(key[0]) and not is_ours else DIFFERENT
            outcome = {"verdict": verdict, "by": "missing", "detail": f"not in the {missing}"}
        found.append(Comparison(step=step, process=process, key=".".join(key), **outcome))
    return found


def _has_old_keys(leaves: _Leaves) -> bool:
    """Return whether the keys have the form used up to msprobe 1.3: `x.0` instead of
    `x.0.debug`.
    """
    return bool(leaves) and not any(".debug" in key[0] for key in leaves)


def _without_mark(leaves: _Leaves) -> _Leaves:
    return {(key[0].replace(".debug", ""), *key[1:]): leaf for key, leaf in leaves.items()}


def _compare_leaves(
    ours: tuple[Dump, Leaf | None], theirs: tuple[Dump, Leaf | None], tolerance: Tolerance
) -> dict[str, Any]:
    dump_a, a = ours
    dump_b, b = theirs
    if a is None or b is None:
        if a is b:
            return _not_compared("null in both: no gradient came")
        return _verdict(False, f"null in the {'first' if a is None else 'second'}", "null")
    if "shape" not in a and "shape" not in b:
        return _compare_scalars(a, b, tolerance)
    differing = _differing_form(a, b)
    if differing is not None:
        return _verdict(False, f"{a.get(differing)} and {b.get(differing)}", differing)
    try:
        whole_a = dump_a.load(a)
        whole_b = dump_b.load(b)
    except OSError as error:
        return _verdict(False, str(error), "tensor")
    if whole_a is not None and whole_b is not None:
        return _compare_arrays(whole_a, whole_b, tolerance)
    # msprobe hashes MindSpore's bfloat16 as float32, so these hashes cannot be compared with
    # PyTorch's.
    same_framework = dump_a.header.get("framework") == dump_b.header.get("framework")
    if tolerance.is_exact and (same_framework or _dtype(a) != "bfloat16"):
        outcome = _compare_hashes(a, b)
        if outcome is not None:
            return outcome
    return _compare_statistics(a, b, tolerance)


def _differing_form(a: Leaf, b: Leaf) -> str | None:
    """Return what of two leaves does not match: type, shape or dtype; None if they are alike."""
    if ("shape" in a) != ("shape" in b):
        return "type"
    if a.get("shape") != b.get("shape"):
        return "shape"
    if _dtype(a) != _dtype(b):
        return "dtype"
    return None


def _compare_hashes(a: Leaf, b: Leaf) -> dict[str, Any] | None:
    """Compare by the first kind of hash that both have, or return None if there is none."""
    for name in _HASHES:
        if a.get(name) and b.get(name):
            outcome = _verdict(a[name] == b[name], f"{name} {a[name]} and {b[name]}", "hash")
            return _statistics_errors(a, b) | outcome
    return None


def _compare_scalars(a: Leaf, b: Leaf, tolerance: Tolerance) -> dict[str, Any]:
    left = a.get("value")
    right = b.get("value")
    if left is None and right is None:
        if a.get("type") != b.get("type"):
            return _verdict(False, f"{a.get('type')} and {b.get('type')}", "type")
        is_none = a.get("type") == "NoneType"
        if is_none:
            return _verdict(True, "", "value")
        return _not_compared(str(a.get("error", "null in both")))
    if _is_number(left) and _is_number(right):
        return _verdict(tolerance.allows(left, right), f"{left} and {right}", "value") | _errors(
            left, right
        )
    return _verdict(left == right, f"{left!r} and {right!r}"[:200], "value")


def _with_positive_norm(leaf: Leaf) -> Leaf:
    """Return statistics whose norm has no sign: msprobe writes a scalar itself as its norm."""
    norm = leaf.get("Norm")
    return {**leaf, "Norm": abs(norm)} if _is_number(norm) else leaf


def _compare_statistics(a: Leaf, b: Leaf, tolerance: Tolerance) -> dict[str, Any]:
    a = _with_positive_norm(a)
    b = _with_positive_norm(b)
    # A statistic missing from one side was not computed by the tool that wrote it.
    both = [
        name
        for name in (*STATISTICS, *_EXACT)
        if a.get(name) is not None and b.get(name) is not None
    ]
    if not set(both) & set(STATISTICS):
        return _not_compared("no statistics in both")
    detail = ""
    for name in both:
        allowed = Tolerance() if name in _EXACT else tolerance
        if not allowed.allows(a[name], b[name]):
            detail = f"{name} {a[name]} and {b[name]}"
            break
    return _statistics_errors(a, b) | _verdict(not detail, detail, "statistics")


def _statistics_errors(a: Leaf, b: Leaf) -> dict[str, Any]:
    """Return the largest errors among the four statistics."""
    largest: dict[str, Any] = {"max_abs_error": None, "max_rel_error": None}
    for statistic in STATISTICS:
        if not _is_number(a.get(statistic)) or not _is_number(b.get(statistic)):
            continue
        for name, error in _errors(a[statistic], b[statistic]).items():
            if error is not None:
                largest[name] = error if largest[name] is None else max(largest[name], error)
    return largest


def _errors(left: float, right: float) -> dict[str, Any]:
    if not (math.isfinite(left) and math.isfinite(right)):
        return {"max_abs_error": None, "max_rel_error": None}
    error = abs(left - right)
    if error == 0:
        relative = 0.0
    elif right == 0:
        relative = math.inf
    else:
        relative = error / abs(right)
    return {"max_abs_error": float(error), "max_rel_error": float(relative)}


def _compare_arrays(a: Any, b: Any, tolerance: Tolerance) -> dict[str, Any]:
    """Compare value by value, in blocks, so that memory stays bounded."""
    if a.shape != b.shape:
        return _verdict(False, f"{list(a.shape)} and {list(b.shape)}", "shape")
    shape = a.shape
    a = a.reshape(-1)
    b = b.reshape(-1)
    max_abs = max_rel = squares_a = squares_b = product = 0.0
    num_different = 0
    first = -1
    for start in range(0, a.size, _BLOCK):
        left = a[start : start + _BLOCK]
        right = b[start : start + _BLOCK]
        with np.errstate(all="ignore"):
            same = (left == right) | ((left != left) & (right != right))
            both = np.isfinite(left) & np.isfinite(right)
            left, right = (
                np.where(both, side, 0).astype(np.result_type(side, np.float64))
                for side in (left, right)
            )
            error = np.abs(left - right)
            size = np.abs(right)
            close = same | (both & (error <= tolerance.absolute + tolerance.relative * size))
            relative = np.where(error == 0, 0.0, error / size)
        max_abs = max(max_abs, float(error.max()))
        max_rel = max(max_rel, float(relative.max()))
        product += float(np.vdot(left, right).real)
        squares_a += float(np.vdot(left, left).real)
        squares_b += float(np.vdot(right, right).real)
        if first < 0 and not close.all():
            first = start + int(np.argmin(close))
        num_different += int(close.size - np.count_nonzero(close))
    detail = ""
    if num_different:
        at = [int(index) for index in np.unravel_index(first, shape)] if shape else []
        detail = f"{num_different} of {a.size} values, first at {at}: {a[first]} and {b[first]}"
    length = math.sqrt(squares_a) * math.sqrt(squares_b)
    errors = {
        "max_abs_error": max_abs,
        "max_rel_error": max_rel,
        "cosine": product / length if length else None,
    }
    return _verdict(not num_different, detail, "tensor") | errors


def _verdict(is_same: bool, detail: str, by: str) -> dict[str, Any]:
    return {
        "verdict": SAME if is_same else DIFFERENT,
        "by": by,
        "detail": "" if is_same else detail,
    }


def _not_compared(why: str) -> dict[str, Any]:
    return {"verdict": NOT_COMPARED, "by": "null", "detail": why}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float)


def _dtype(leaf: Leaf) -> str:
    return str(leaf.get("dtype", "")).rpartition(".")[2].lower()
