"""Parameters that a model uses and torch does not see, because they are kept in a plain container.

    self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]        # nn.ModuleList([…]) is meant

torch registers a module that is an attribute of another one, but does not look into lists, tuples,
sets and dicts. What is in there is not listed by `parameters()`: it is not moved to a device, not
saved, and not trained. Nothing fails; the model merely learns less.

Frozen parameters are left out: a list is also how people hide a frozen teacher from torch on
purpose.
"""

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from torch import nn

_CONTAINERS: Final = (list, tuple, set, frozenset, dict, deque)
_MAX_ITEMS: Final = 100_000
"""Items to look at: a module may also keep its data in a list."""
_TORCHS_OWN: Final = frozenset(vars(nn.Module()))
"""The attributes that every module has: what torch registered, and its hooks."""

_logger = logging.getLogger("sonde")


def unregistered_parameters(model: nn.Module) -> list[str]:
    """Return where trainable parameters are that are reachable from `model` through plain
    containers, but not listed by `model.parameters()`: `layers[0].weight`.
    """
    seen = {id(parameter) for parameter in model.parameters()}
    visited: set[int] = set()
    return list(_search(model, "", seen, visited))


def tell_unregistered(model: nn.Module) -> None:
    """Log a warning that names the parameters torch does not see, if there are any."""
    found = unregistered_parameters(model)
    if found:
        more = f" and {len(found) - 10} more" if len(found) > 10 else ""
        _logger.warning(
            "torch does not see %d parameters of the model: %s%s. They are in a plain Python"
            " container, so they are not moved to a device, not saved, and not trained unless you"
            " gave them to the optimizer yourself. Keep modules in nn.ModuleList or nn.ModuleDict,"
            " and parameters in nn.ParameterList or nn.ParameterDict",
            len(found),
            ", ".join(found[:10]),
            more,
        )


def _search(value: Any, place: str, seen: set[int], visited: set[int]) -> Iterator[str]:
    """Yield the places of trainable parameters below `value` that are not yet `seen`."""
    if isinstance(value, nn.Parameter):
        if value.requires_grad and id(value) not in seen:
            seen.add(id(value))
            yield place
        return
    is_looked_into = isinstance(value, (nn.Module, *_CONTAINERS))
    if not is_looked_into or id(value) in visited or len(visited) > _MAX_ITEMS:
        return
    visited.add(id(value))
    items = _attributes(value, place) if isinstance(value, nn.Module) else _content(value, place)
    for name, child in items:
        yield from _search(child, name, seen, visited)


def _attributes(module: nn.Module, place: str) -> Iterator[tuple[str, Any]]:
    """Yield what a module registered, and the containers among its other attributes."""
    before = f"{place}." if place else ""
    own = [(name, child) for name, child in vars(module).items() if name not in _TORCHS_OWN]
    containers = [(name, child) for name, child in own if isinstance(child, _CONTAINERS)]
    registered = [*module.named_parameters(recurse=False), *module.named_children()]
    for name, child in [*registered, *containers]:
        yield before + name, child


def _content(container: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container."""
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for key, child in itertools.islice(pairs, _MAX_ITEMS):
        yield f"{place}[{key!r}]", child
