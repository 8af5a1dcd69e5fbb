"""How particular values are spelled, and that no value raises, hangs or fills the disk."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from sonde.records import values
from sonde.records.values import MAX_RECORD_BYTES, decode, encode


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Settings:
    rate: float
    _private: int
    inner: Any = None


Point = collections.namedtuple("Point", "x y")


def read_back(value: object) -> Any:
    """`value` after a round trip, having checked that its line is strict JSON and a single line."""
    line = encode(value)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    orjson.loads(line)
    return decode(line)


@pytest.mark.parametrize(
    ("value", "spelling"),
    [
        (math.nan, b'"NaN"'),
        (math.inf, b'"Infinity"'),
        (-math.inf, b'"-Infinity"'),
        ("NaN", b'"=NaN"'),
        ("=-Infinity", b'"==-Infinity"'),
        (2**80, b'{"$int":"1208925819614629174706176"}'),
        (2**64 - 1, b"18446744073709551615"),
        (b"\x00\x01\x02", b'{"$bytes":"AAEC"}'),
        (1 - 2j, b'{"$complex":[1.0,-2.0]}'),
        ({2, 1}, b'{"$set":[1,2]}'),
        ("\ud800", b'{"$str":"\\"\\\\ud800\\""}'),
        ({1: "a", (2, 3): "b"}, b'{"$dict":[[1,"a"],[[2,3],"b"]]}'),
        ({"$a": 1}, b'{"$dict":[["$a",1]]}'),
    ],
)
def test_what_json_cannot_say_is_spelled_as_documented(value: object, spelling: bytes) -> None:
    assert encode(value) == spelling + b"\n"
    assert repr(decode(spelling)) == repr(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), 0.1),
        (np.float64(math.nan), math.nan),
        (np.int64(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.array(2.5), 2.5),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, math.inf]), [1.0, math.inf]),
        (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (np.str_("x"), "x"),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([1.5]), [1.5]),
        (torch.tensor(1.5, requires_grad=True), 1.5),
        (torch.tensor(math.nan, dtype=torch.bfloat16), math.nan),
        (torch.tensor(7), 7),
        (torch.tensor([[True], [False]]), [[True], [False]]),
        (torch.tensor(1 + 2j), 1 + 2j),
        (torch.nn.Parameter(torch.zeros(2)), [0.0, 0.0]),
        (torch.Size([2, 3]), [2, 3]),
        (datetime.date(2024, 2, 29), "2024-02-29"),
        (
            datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.timezone.utc),
            "2024-02-29T01:02:03+00:00",
        ),
        (datetime.time(1, 2), "01:02:00"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (decimal.Decimal("NaN"), "NaN"),
        (fractions.Fraction(1, 3), "1/3"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
        (Point(1, [2]), [1, [2]]),
        (
            Settings(0.5, 1, Settings(math.inf, 2)),
            {"rate": 0.5, "_private": 1, "inner": {"rate": math.inf, "_private": 2, "inner": None}},
        ),
        (argparse.Namespace(rate=0.5, path=pathlib.PurePosixPath("x")), {"rate": 0.5, "path": "x"}),
        (types.SimpleNamespace(a=1), {"a": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (bytearray(b"ab"), b"ab"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_common_types_read_back_as_plain_values(value: object, expected: object) -> None:
    # Alone, and beside a value that sends the whole record down the careful path.
    assert repr(read_back(value)) == repr(expected)
    assert repr(read_back([value, None])) == repr([expected, None])


def test_a_tensor_class_of_the_users_own_is_a_tensor() -> None:
    class Tagged(torch.Tensor):
        pass

    assert read_back({"loss": torch.tensor(2.0).as_subclass(Tagged)}) == {"loss": 2.0}


@pytest.mark.parametrize(
    "value",
    [torch.float32, torch.empty(2, device="meta"), np.longdouble(1.5), object(), range(3)],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_plain_value_is_named(value: object) -> None:
    assert read_back({"x": value})["x"].keys() == {"$repr"}


def test_keys_that_look_alike_stay_apart() -> None:
    keys = [
        "1",
        1,
        1.5,
        "1.5",
        None,
        "None",
        "",
        "é",
        "e\u0301",
        "k" * 10_000,
        "new\nline",
        "</script>",
        "\ud800",
        b"1",
        ("1",),
        (1,),
    ]
    record = {key: position for position, key in enumerate(keys)}
    assert read_back(record) == record


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class _HostileProxy:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("unbound")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise RuntimeError("unbound")


class _HostileText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")


class _HostileNumber(int):
    def __int__(self) -> int:
        raise RuntimeError("no number")


class _HostileMapping(collections.abc.Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 10**9


class _HostileArray(np.ndarray[Any, Any]):
    def tolist(self) -> Any:
        raise MemoryError


def test_objects_that_raise_when_read_are_named_with_what_they_raised() -> None:
    hostile = [
        _Hostile(),
        _HostileMapping(),
        _HostileProxy(),
        {_Hostile()},
        np.zeros(3).view(_HostileArray)[::2],
    ]
    for value in hostile:
        assert "while reading it" in read_back({"x": value, "y": None})["x"]["$repr"]
    assert read_back([_HostileText("a"), None]) == ["a", None]
    assert read_back([_HostileNumber(4), None]) == [4, None]


def test_all_fields_of_a_dataclass_are_written() -> None:
    assert read_back(Settings(0.5, 1, 2)) == {"rate": 0.5, "_private": 1, "inner": 2}


def test_a_lost_attribute_of_a_dataclass_spoils_that_value_only() -> None:
    broken = Settings(1.0, 2)
    del broken.rate
    assert read_back({"ok": 1, "broken": broken}) == {
        "ok": 1,
        "broken": {"$repr": "Settings (AttributeError while reading it)"},
    }


def test_cycles_end_visibly() -> None:
    record: dict[str, Any] = {"a": 1}
    record["self"] = record
    items: list[Any] = [record]
    items.append(items)
    assert read_back(record) == {"a": 1, "self": {"$cut": "a cycle"}}
    assert read_back(items)[1] == {"$cut": "a cycle"}


def test_the_same_value_twice_is_no_cycle() -> None:
    shared = [math.nan]
    assert repr(read_back([shared, shared])) == "[[nan], [nan]]"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def unnest(value: Any) -> None:
    """Take a deep nest apart level by level: freeing it in one go would recurse."""
    while value:
        value = value.pop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: nested(100_000), id="depth"),
        pytest.param(
            lambda: {f"field{number}": 0.1 * number for number in range(1_000_000)}, id="fields"
        ),
        pytest.param(lambda: "x" * 100_000_000, id="string"),
        pytest.param(lambda: ["\x01" * 1_000_000] * 20, id="escapes"),
        pytest.param(lambda: ["\ud800" + "😀" * 100_000] * 40, id="surrogates"),
        pytest.param(lambda: b"x" * 50_000_000, id="bytes"),
        pytest.param(lambda: np.zeros(5_000_000), id="array"),
        pytest.param(lambda: torch.zeros(5_000_000), id="tensor"),
        pytest.param(lambda: [torch.zeros(3_000_000)] * 100, id="tensors"),
        pytest.param(lambda: dict.fromkeys(range(300_000)), id="keys"),
        pytest.param(lambda: 1 << 100_000_000, id="int"),
        pytest.param(lambda: [_Hostile()] * 100_000, id="hostile"),
    ],
)
def test_size_bombs_are_cut_to_size_quickly_and_visibly(make: Callable[[], Any]) -> None:
    value = make()
    start = time.process_time()
    line = encode({"step": 1, "bomb": value, "after": 2})
    assert time.process_time() - start < 5  # measured: at most 1.5 s
    assert len(line) <= MAX_RECORD_BYTES
    assert b'"$cut"' in line or b'"$repr"' in line
    assert json.loads(line)["step"] == 1
    if isinstance(value, list) and len(value) == 1:
        unnest(value)


def test_a_bomb_leaves_small_neighbours_alone() -> None:
    record = read_back({"loss": 0.5, "text": "x" * 100_000_000, "step": 7})
    assert record["text"] == {"$cut": "a string of 100000000 characters", "start": "x" * 1000}
    assert (record["loss"], record["step"]) == (0.5, 7)


def test_encoding_deep_in_the_callers_stack_does_not_raise() -> None:
    def descend(levels: int) -> bytes:
        try:
            return descend(levels + 1)
        except RecursionError:
            return encode({"a": {"b": [None, math.nan]}})

    assert descend(0).endswith(b"\n")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 900 + b'{"$int":"5"}' + b"}" * 900,
        b'{"$str":"' + b"[" * 100_000 + b'"}',
        b'{"a":"\xff"}',
        b'{"a":1}{"b":2}',
        b"\x00\x00",
    ],
    ids=[
        "empty",
        "torn",
        "deep",
        "deep spelling",
        "deep within a string",
        "no UTF-8",
        "two values",
        "NUL",
    ],
)
def test_what_is_not_json_raises_value_error_and_nothing_else(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  orjson, json and we say it in different words
        decode(line)


@pytest.mark.parametrize(
    "spelling",
    [
        '{"$int":5}',
        '{"$int":"x"}',
        '{"$bytes":"?"}',
        '{"$complex":[1]}',
        '{"$complex":[1,2,3]}',
        '{"$str":"[1]"}',
        '{"$str":"x"}',
        '{"$dict":[[1]]}',
        '{"$dict":[[{},1]]}',
        '{"$set":[{}]}',
        '{"$set":5}',
        '{"$cut":"x"}',
    ],
)
def test_what_only_resembles_a_spelling_is_left_as_it_is(spelling: str) -> None:
    if spelling == '{"$complex":[1]}':
        assert decode(spelling.encode()) == 1 + 0j
    else:
        assert decode(spelling.encode()) == json.loads(spelling)


def test_the_bare_constants_of_pythons_json_are_read() -> None:
    assert repr(decode(b'{"a": NaN, "b": -Infinity, "c": "\\ud800"}')) == repr(
        {"a": math.nan, "b": -math.inf, "c": "\ud800"}
    )


def test_none_beside_finite_numbers_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        values, "_encode_with_care", lambda *_: pytest.fail("the careful path was taken")
    )
    assert (
        values.encode({"a": None, "b": [1.5, None, {"c": True}]})
        == b'{"a":null,"b":[1.5,null,{"c":true}]}\n'
    )
