"""Any value is one line of strictly valid JSON, and what JSON can be made to carry comes back as it
was.
"""

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sonde.records.values import decode, encode

AWKWARD_TEXT = [
    "",
    "NaN",
    "=NaN",
    "==Infinity",
    "-Infinity",
    "NaN\n",
    "$int",
    "$",
    "null",
    "\ud800",
    "a\ud800😀",
    "\0",
    "</script>",
]
# All code points: lone surrogates too, which hypothesis leaves out unless asked.
TEXT = st.sampled_from(AWKWARD_TEXT) | st.text(st.characters(exclude_categories=()), max_size=20)
NUMBERS = (
    st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.sampled_from([-0.0, 5e-324, 2**63, 2**64, -(2**63) - 1])
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT | st.binary(max_size=20) | st.complex_numbers()
KEYS = st.recursive(
    SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
VALUES = st.recursive(
    SCALARS | st.sets(KEYS, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def canonical(value: object) -> object:
    """`value` in a form that tells apart what == does not: types, -0.0, and NaN equal to itself."""
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    if isinstance(value, complex):
        return "complex", canonical(value.real), canonical(value.imag)
    if isinstance(value, list | tuple):
        return type(value).__name__, [canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(repr(canonical(item)) for item in value)
    if isinstance(value, dict):
        return "dict", [(canonical(key), canonical(item)) for key, item in value.items()]
    return type(value).__name__, value


def refuse_constant(name: str) -> object:
    raise AssertionError(f"{name} is not JSON")


def strictly_parsed(line: bytes) -> Any:
    """The line by two strict parsers, which must agree that it is JSON; one newline, at its end."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    orjson.loads(line)
    return json.loads(line, parse_constant=refuse_constant)


@pytest.mark.slow
@given(VALUES)
@settings(max_examples=150)
@example({"$int": "5", "$cut": None})
@example([{"$dict": []}, {"$repr": "x"}])
@example({"NaN": math.nan, 1: {frozenset({(1, "=NaN")}): -0.0}})
@example([2**200, -(2**12_000), 10**400, True, 1, 1.0])
def test_any_nesting_of_plain_values_comes_back_as_it_was(value: object) -> None:
    line = encode(value)
    strictly_parsed(line)
    assert canonical(decode(line)) == canonical(value)


@given(VALUES)
@settings(max_examples=50)
def test_a_value_is_spelled_alike_whatever_stands_beside_it(value: object) -> None:
    # A neighbour that needs the careful path must not change how the rest is read.
    assert canonical(decode(encode([value, 1]))) == canonical([value, 1])
    assert canonical(decode(encode([value, None]))) == canonical([value, None])


@given(VALUES, st.integers(64, 300))
@settings(max_examples=100)
def test_no_line_is_longer_than_allowed(value: object, max_bytes: int) -> None:
    line = encode([value] * 3, max_bytes=max_bytes)
    strictly_parsed(line)
    assert len(line) <= max_bytes


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["NaN", "=NaN", "AAE=", "0x5", '"a"', "[[", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$int", "$bytes", "$complex", "$set", "$str", "$dict", "$cut", "a"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=10,
)


@given(JSON_LIKE)
@settings(max_examples=150)
def test_foreign_json_that_looks_like_our_spellings_never_fails(value: object) -> None:
    decoded = decode(json.dumps(value).encode())
    assert canonical(decode(encode(decoded))) == canonical(decoded)


@given(st.binary(max_size=60))
@settings(max_examples=150)
def test_bytes_that_are_no_json_raise_value_error_only(garbage: bytes) -> None:
    try:
        decoded = decode(garbage)
    except ValueError:
        return
    assert canonical(decode(encode(decoded))) == canonical(decoded)
