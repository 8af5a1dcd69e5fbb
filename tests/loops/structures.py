"""Batches of every kind: what a step function may be given, and how its loss comes out."""

import collections
import collections.abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from loops.context import Context, language_model, network
from torch import Tensor, nn


class Structure(NamedTuple):
    """How batches look and what their loss is."""

    model: Callable[[], nn.Module]
    batch: Callable[[Context, int], Any]
    loss: Callable[[nn.Module, Any], Tensor]
    returns: Callable[[Tensor], Any] = lambda loss: loss
    """What the step function returns."""
    reports: bool = True
    """Whether the loop calls `recorder.loss`."""


def _inputs(context: Context, step: int, rows: int = 6, columns: int = 8) -> Tensor:
    return torch.randn(rows, columns) * context.scale(step)


def _tokens(context: Context, step: int, rows: int = 4, length: int = 12) -> Tensor:
    tokens = torch.randint(0, 30, (rows, length))
    if context.scale(step) > 1:
        tokens = torch.randint(30, 40, (rows, length))  # tokens that never came before
    return tokens


def _class_loss(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def _token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _square_loss(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().mean()


def _classes(context: Context, step: int) -> tuple[Tensor, Tensor]:
    return _inputs(context, step), torch.randint(0, 4, (6,))


def _images(context: Context, step: int) -> dict[str, Tensor]:
    pictures = torch.rand(4, 3, 8, 8) * context.scale(step)
    return {"image": pictures, "label": torch.randint(0, 4, (4,))}


def _picture_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )


class Graph:
    """A graph as PyTorch Geometric has them: plain attributes."""

    def __init__(self, nodes: Tensor, edges: Tensor, target: Tensor) -> None:
        self.x = nodes
        self.edge_index = edges
        self.y = target


def _graph(context: Context, step: int) -> Graph:
    nodes = torch.randn(10, 8) * context.scale(step)
    return Graph(nodes, torch.randint(0, 10, (2, 20)), torch.randint(0, 4, (10,)))


def _graph_loss(model: nn.Module, graph: Graph) -> Tensor:
    source, target = graph.edge_index
    mixed = graph.x.index_add(0, target, graph.x[source])
    return F.cross_entropy(model(mixed), graph.y)


def _sparse(context: Context, step: int) -> Tensor:
    return _inputs(context, step).relu().to_sparse()


def _sparse_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch.to_dense()).square().mean()


def _nested(context: Context, step: int) -> Tensor:
    parts = [torch.randn(length, 8) * context.scale(step) for length in (3, 5, 2)]
    return torch.nested.nested_tensor(parts)


def _jagged(context: Context, step: int) -> Tensor:
    parts = [torch.randint(0, 40, (length,)) for length in (3, 5, 2)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def _nested_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return torch.stack([model(part).square().mean() for part in batch.unbind()]).mean()


def _jagged_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return torch.stack([_token_loss(model, part[None]) for part in batch.unbind()]).mean()


def _array(make: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Context, int], Any]:
    def batch(context: Context, step: int) -> Any:
        return make(_inputs(context, step).numpy())

    return batch


def _array_loss(model: nn.Module, batch: Any) -> Tensor:
    numbers = np.ascontiguousarray(batch).astype(np.float32)
    return model(torch.from_numpy(numbers)).square().mean()


@dataclasses.dataclass
class Sample:
    inputs: Tensor
    labels: Tensor
    note: str = "a note"


@dataclasses.dataclass(frozen=True)
class FrozenSample:
    inputs: Tensor
    labels: Tensor


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


class Slots:
    __slots__ = ("inputs", "labels")

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels


def _made(kind: Callable[..., Any]) -> Callable[[Context, int], Any]:
    def batch(context: Context, step: int) -> Any:
        return kind(*_classes(context, step))

    return batch


def _made_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.labels)


def _strings(context: Context, step: int) -> dict[str, Any]:
    inputs, labels = _classes(context, step)
    return {"inputs": inputs, "labels": labels, "text": ["a line"] * 6, "meta": {"none": None}}


def _named_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["inputs"]), batch["labels"])


def _generator(context: Context, step: int) -> Iterator[Tensor]:
    return iter([_inputs(context, step), _inputs(context, step)])


def _generator_loss(model: nn.Module, batch: Iterator[Tensor]) -> Tensor:
    return torch.stack([model(part).square().mean() for part in batch]).mean()


def _cyclic(context: Context, step: int) -> dict[str, Any]:
    batch: dict[str, Any] = _strings(context, step)
    batch["self"] = batch
    return batch


def _strange_keys(context: Context, step: int) -> dict[Any, Any]:
    inputs, labels = _classes(context, step)
    return {0: inputs, ("a", 1): labels, None: 5}


def _overlapping(context: Context, step: int) -> Tensor:
    return torch.randn(13).mul(context.scale(step)).unfold(0, 8, 1)


def _expanded(context: Context, step: int) -> Tensor:
    return (torch.randn(1, 8) * context.scale(step)).expand(6, 8)


class Augments(collections.abc.Mapping[str, Tensor]):
    """Draws random numbers whenever it is read."""

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs

    def __getitem__(self, key: str) -> Tensor:
        return self._inputs + 0.1 * torch.randn(self._inputs.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(("x",))

    def __len__(self) -> int:
        return 1


class AugmentsInTurn(list[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for inputs in super().__iter__():
            yield inputs + 0.1 * torch.randn(inputs.shape)


class ReadOnce(dict[str, Tensor]):
    """Its entries leave when they are read."""

    def __getitem__(self, key: str) -> Tensor:
        return self.pop(key)

    def items(self) -> Any:
        while self:
            yield self.popitem()


class Node:
    """A node of a tree, which knows its parent."""

    def __init__(self, value: Tensor, parent: "Node | None") -> None:
        self.value = value
        self.parent = parent
        self.children: list[Node] = []


def _tree(context: Context, step: int, depth: int = 5, parent: Node | None = None) -> Node:
    node = Node(torch.randn(8) * context.scale(step), parent)
    if depth:
        node.children = [_tree(context, step, depth - 1, node) for _ in range(2)]
    return node


def _tree_loss(model: nn.Module, node: Node) -> Tensor:
    below = [0.5 * _tree_loss(model, child) for child in node.children]
    return torch.stack([model(node.value).square().mean(), *below]).sum()


class WithCorpus:
    """A batch that knows the dataset it comes from."""

    corpus: ClassVar[list[str]] = [f"line {number}" for number in range(100_000)]

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs
        self.dataset = self.corpus


class Hostile(collections.UserDict):  # type: ignore[type-arg]
    """A mapping that answers only for the keys it likes."""

    def items(self) -> Any:
        raise RuntimeError("not iterable")


class HasLoss:
    """A result whose `.loss` raises."""

    @property
    def loss(self) -> Tensor:
        raise RuntimeError("no loss here")


class TokenModel(nn.Module):
    """Returns its loss, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = language_model()

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        return {"loss": _token_loss(self.inner, input_ids)}


class PackedModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(8, 6)

    def forward(self, batch: Any) -> Tensor:
        packed: Tensor = self.recurrent(batch)[0].data
        return packed


STRUCTURES: dict[str, Structure] = {
    "classes with 1-D labels": Structure(network, _classes, _class_loss),
    "images": Structure(
        _picture_model,
        _images,
        lambda model, batch: F.cross_entropy(model(batch["image"]), batch["label"]),
    ),
    "tokens": Structure(language_model, _tokens, _token_loss),
    "int32 tokens": Structure(
        language_model,
        lambda context, step: _tokens(context, step).int(),
        lambda model, batch: _token_loss(model, batch.long()),
    ),
    "loss returned by the model": Structure(
        TokenModel,
        lambda context, step: {"input_ids": _tokens(context, step)},
        lambda model, batch: model(**batch)["loss"],
        reports=False,
    ),
    "regression": Structure(network, _inputs, _square_loss),
    "loss as a number": Structure(network, _inputs, _square_loss, lambda loss: loss.item(), False),
    "nothing returned": Structure(network, _inputs, _square_loss, lambda _: None),
    "a dict returned": Structure(
        network, _inputs, _square_loss, lambda loss: {"loss": loss, "note": "x"}, False
    ),
    "a result whose loss raises": Structure(network, _inputs, _square_loss, lambda _: HasLoss()),
    "graph": Structure(network, _graph, _graph_loss),
    "sparse": Structure(network, _sparse, _sparse_loss),
    "nested": Structure(network, _nested, _nested_loss),
    "jagged tokens": Structure(language_model, _jagged, _jagged_loss),
    "array": Structure(network, _array(lambda array: array), _array_loss),
    "array, reversed": Structure(network, _array(lambda array: array[::-1, ::-1]), _array_loss),
    "array, Fortran order": Structure(network, _array(np.asfortranarray), _array_loss),
    "array, big-endian": Structure(network, _array(lambda array: array.astype(">f4")), _array_loss),
    "array, longdouble": Structure(
        network, _array(lambda array: array.astype(np.longdouble)), _array_loss
    ),
    "array of objects": Structure(network, _array(lambda array: array.astype(object)), _array_loss),
    "read-only array": Structure(
        network, _array(lambda array: np.broadcast_to(array[:1], array.shape)), _array_loss
    ),
    "strings and None": Structure(network, _strings, _named_loss),
    "dataclass": Structure(network, _made(Sample), _made_loss),
    "frozen dataclass": Structure(network, _made(FrozenSample), _made_loss),
    "named tuple": Structure(network, _made(Pair), _made_loss),
    "slots": Structure(network, _made(Slots), _made_loss),
    "generator": Structure(network, _generator, _generator_loss),
    "cyclic": Structure(network, _cyclic, _named_loss),
    "strange keys": Structure(
        network,
        _strange_keys,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch["a", 1]),
    ),
    "a mapping that cannot be listed": Structure(
        network, lambda context, step: Hostile(_strings(context, step)), _named_loss
    ),
    "augmented as it is read": Structure(
        network,
        lambda context, step: Augments(_inputs(context, step)),
        lambda model, batch: _square_loss(model, batch["x"]),
    ),
    "list augmented as it is read": Structure(
        network,
        lambda context, step: AugmentsInTurn([_inputs(context, step), _inputs(context, step)]),
        _generator_loss,
    ),
    "read only once": Structure(
        network,
        lambda context, step: ReadOnce(x=_inputs(context, step)),
        lambda model, batch: _square_loss(model, batch["x"]),
    ),
    "tree with parents": Structure(network, _tree, _tree_loss),
    "with its dataset": Structure(
        network,
        lambda context, step: WithCorpus(_inputs(context, step)),
        lambda model, batch: _square_loss(model, batch.inputs),
    ),
    "packed sequence": Structure(
        PackedModel,
        lambda context, step: nn.utils.rnn.pack_sequence(
            [torch.randn(length, 8) * context.scale(step) for length in (5, 4, 2)]
        ),
        lambda model, batch: model(batch).square().mean(),
    ),
    "masked": Structure(
        network,
        lambda context, step: torch.masked.masked_tensor(
            _inputs(context, step), torch.ones(6, 8, dtype=torch.bool)
        ),
        lambda model, batch: _square_loss(model, batch.get_data()),
    ),
    "overlapping views": Structure(network, _overlapping, _square_loss),
    "expanded": Structure(network, _expanded, _square_loss),
    "a meta tensor beside": Structure(
        network,
        lambda context, step: (_inputs(context, step), torch.empty(3, device="meta")),
        lambda model, batch: _square_loss(model, batch[0]),
    ),
    "nothing but a number": Structure(
        network,
        lambda context, step: context.scale(step),
        lambda model, batch: _square_loss(model, torch.randn(6, 8) * batch),
    ),
    "None": Structure(
        network,
        lambda *_: None,
        lambda model, _: _square_loss(model, torch.randn(6, 8)),
    ),
    "complex": Structure(
        network,
        lambda context, step: torch.complex(_inputs(context, step), _inputs(context, step)),
        lambda model, batch: _square_loss(model, batch.real),
    ),
    "bfloat16": Structure(
        network,
        lambda context, step: _inputs(context, step).bfloat16(),
        lambda model, batch: _square_loss(model, batch.float()),
    ),
    "an empty tensor beside": Structure(
        network,
        lambda context, step: {"empty": torch.empty(0, 3), "x": _inputs(context, step)},
        lambda model, batch: _square_loss(model, batch["x"]),
    ),
}
