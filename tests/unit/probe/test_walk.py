"""The walk over nested values."""

import collections
import dataclasses
import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from sonde.probe.walk import MAX_DEPTH, Framework, Indexes, Leaf, is_leaf, leaves
from sonde.probe.walk import walk as walk_value


class Point(NamedTuple):
    x: object
    y: object


class Pair(Point):
    """A class derived from a named tuple."""


@dataclasses.dataclass
class Box:
    inside: object
    label: str = "box"


class Colour(enum.Enum):
    RED = 1


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def walk(value: object) -> tuple[Any, list[Indexes]]:
    visited: list[Indexes] = []

    def visit(tensor: Any, indexes: Indexes, framework: Framework) -> Leaf:
        visited.append(indexes)
        return {"type": framework.NAME or "numpy", "shape": list(tensor.shape)}

    return walk_value(value, visit), visited


def test_every_kind_of_container_is_walked_and_its_indexes_are_given() -> None:
    x = torch.ones(2)
    tree, visited = walk(
        {
            "a": [x, (x,)],
            "p": Point(x, 1),
            "q": Pair(1, x),
            "d": Box(x),
            "o": collections.OrderedDict(k=x),
        }
    )
    assert visited == [
        ("a", "0"),
        ("a", "1", "0"),
        ("p", "x"),
        ("q", "y"),
        ("d", "inside"),
        ("o", "k"),
    ]
    assert tree["p"] == {"x": {"type": "pytorch", "shape": [2]}, "y": {"type": "int", "value": 1}}
    assert tree["d"]["label"] == {"type": "str", "value": "box"}
    assert isinstance(tree["a"][1], list)


def test_a_bare_tensor_a_parameter_and_an_array_are_leaves() -> None:
    assert walk(torch.ones(2)) == ({"type": "pytorch", "shape": [2]}, [()])
    assert walk(torch.nn.Parameter(torch.ones(1)))[1] == [()]
    assert walk(np.ones((2, 3)))[0] == {"type": "numpy", "shape": [2, 3]}


@pytest.mark.parametrize(
    ("value", "leaf"),
    [
        (None, {"type": "NoneType", "value": None}),
        (True, {"type": "bool", "value": True}),
        (3, {"type": "int", "value": 3}),
        (2.5, {"type": "float", "value": 2.5}),
        ("s", {"type": "str", "value": "s"}),
        (np.float64(1.5), {"type": "float64", "value": 1.5}),
        (np.float32(1.5), {"type": "float32", "value": 1.5}),
        (np.int8(3), {"type": "int8", "value": 3}),
        (1 + 2j, {"type": "complex", "value": [1.0, 2.0]}),
        (torch.Size([2, 3]), {"type": "torch.Size", "value": [2, 3]}),
        (torch.float32, {"type": "torch.dtype", "value": "torch.float32"}),
        ({1}, {"type": "set", "value": "{1}"}),
        (b"ab", {"type": "bytes", "value": "b'ab'"}),
    ],
)
def test_a_scalar_is_written_with_its_type(value: object, leaf: Leaf) -> None:
    assert walk(value)[0] == leaf


def test_keys_that_are_no_strings_become_strings_that_collide_with_none() -> None:
    tree, _ = walk({1: "int", "1": "str", (2, 3): "tuple", None: 0, Colour.RED: 1})
    assert {key: node["value"] for key, node in tree.items()} == {
        "1": "str",
        "int:1": "int",
        "(2, 3)": "tuple",
        "None": 0,
        "Colour.RED": 1,
    }


def test_a_cycle_and_a_bottomless_nesting_end_in_a_leaf_that_says_so() -> None:
    cyclic: dict[str, object] = {}
    cyclic["self"] = cyclic
    assert "cycle" in walk(cyclic)[0]["self"]["error"]
    deep: object = 1
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    assert leaves(walk(deep)[0])[0][0] == ("0",) * MAX_DEPTH
    shared = [1]
    assert walk([shared, shared])[0] == [[{"type": "int", "value": 1}]] * 2


def test_an_object_that_fails_while_it_is_read_is_a_leaf_that_says_so() -> None:
    class Failing(dict[str, int]):
        def items(self) -> Any:
            raise ValueError("no")

    assert walk(Broken())[0]["error"] == "RuntimeError while reading it"
    assert "ValueError" in walk([Failing(a=1)])[0][0]["error"]


def test_a_tensor_that_cannot_be_looked_at_is_a_leaf_that_says_so() -> None:
    def visit(tensor: Any, indexes: Indexes, framework: Framework) -> Leaf:
        raise RuntimeError("a broken device")

    assert "a broken device" in walk_value([torch.ones(1)], visit)[0]["error"]


def test_long_texts_and_long_numbers_are_cut_visibly() -> None:
    assert "cut" in walk("x" * 200_000)[0]["error"]
    assert "cut" in walk(1 << 100_000)[0]["error"]
    assert walk(1 << 100)[0]["value"] == 1 << 100


def test_a_dict_of_the_users_is_never_taken_for_a_leaf() -> None:
    tree, _ = walk({"type": "int", "value": 3})
    assert not is_leaf(tree)
    assert [indexes for indexes, _ in leaves(tree)] == [("type",), ("value",)]


def test_iterators_are_not_consumed() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    generator = numbers()
    walk(generator)
    assert next(generator) == 1
