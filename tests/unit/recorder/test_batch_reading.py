"""A batch is read without running code of its class, and reading comes to an end."""

from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from sonde.recorder.batch_tree import flatten, num_rows, rebuild, tokens_of


class Refuses(Mapping[str, Tensor]):
    """Whoever reads it as a mapping is refused."""

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def __getitem__(self, key: str) -> NoReturn:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


class NoUpdate(OrderedDict[str, Any]):
    """As a `ModelOutput` of transformers."""

    def update(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("not with this class")


class Called:
    """Holds data, and can be called."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __call__(self) -> None:
        raise RuntimeError


class Slotted:
    __slots__ = ("__hidden", "tokens")

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.__hidden = tokens + 1

    def hidden(self) -> Tensor:
        return self.__hidden


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    "batch",
    [Refuses(TOKENS), NoUpdate(x=TOKENS), Called(TOKENS), Slotted(TOKENS)],
    ids=lambda batch: type(batch).__name__,
)
def test_batches_of_odd_classes_are_read_and_built_again(batch: Any) -> None:
    tree = flatten(batch)
    assert not tree.problem
    found = tokens_of(batch)
    assert found is not None
    assert torch.equal(found, TOKENS)
    others = [tensor + 10 for tensor in tree.tensors]
    made = rebuild(tree.plain, others, batch)
    assert type(made) is type(batch)
    again = tokens_of(made)
    assert again is not None
    assert torch.equal(again, TOKENS + 10)


def test_hidden_slots_belong_to_a_batch() -> None:
    batch = Slotted(TOKENS)
    tree = flatten(batch)
    made = rebuild(tree.plain, [tensor + 10 for tensor in tree.tensors], batch)
    assert torch.equal(made.hidden(), TOKENS + 11)


def test_parts_that_refer_to_one_another_come_to_an_end() -> None:
    nodes = [UserDict[str, Any]() for _ in range(8)]
    for node in nodes:
        node["next"] = [other for other in nodes if other is not node]
    assert "refer to one another" in flatten(nodes).problem
    assert tokens_of(nodes) is None
    assert num_rows(nodes) == 0


def test_a_batch_of_very_many_parts_is_not_read_whole() -> None:
    batch = {"x": TOKENS.float(), "corpus": ["a line"] * 1_000_000}
    assert "parts" in flatten(batch).problem


def test_a_part_that_comes_twice_is_kept_twice() -> None:
    part = {"x": TOKENS}
    deep = [[[[[part, part]]]]]
    assert len(flatten(deep).tensors) == 2
