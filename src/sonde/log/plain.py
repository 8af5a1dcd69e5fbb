"""From whatever a training script logs to values that any backend can take.

Numbers, strings, None and numpy values stay what they are. A tensor on the CPU becomes the number or the nested list it
holds, at once; one on a device becomes a `Copy` that is resolved later; one too large becomes a line that describes it.
Lists, tuples and dicts are looked into, and left alone when they hold no tensor. Nothing here raises, and nothing waits.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from sonde.log.device import MAX_ELEMENTS, Copy, begin_copy, is_tensor_type

PLAIN_TYPES: Final = frozenset({float, int, str, bool, type(None)})
_MAX_DEPTH: Final = 16

BeginCopy = Callable[[Any], Copy]


@final
class Unpacked:
    """The values of one record, tensors taken out of them; `copies` counts those that are still on their way."""

    def __init__(self, begin: BeginCopy = begin_copy) -> None:
        self.copies: list[Copy] = []
        self.num_tensors = 0
        self._begin = begin

    def data(self, data: object) -> dict[Any, Any]:
        """The data of a record. Anything but a mapping is kept under the key `value`."""
        if not isinstance(data, Mapping):
            return {"value": self.value(data)}
        try:
            return {key: self.value(value) for key, value in data.items()}
        except Exception as error:  # noqa: BLE001  a foreign mapping may raise anything while it is read
            return {"value": _unreadable(data, error)}

    def value(self, value: object, depth: int = 0) -> object:
        """One value without tensors in it."""
        kind = type(value)
        if kind in PLAIN_TYPES or depth > _MAX_DEPTH:
            return value
        try:
            if kind is list or kind is tuple or kind is dict:
                return self._container(value, depth)
            if is_tensor_type(kind):
                self.num_tensors += 1
                return self._tensor(value)
        except Exception as error:  # noqa: BLE001  a foreign value may raise anything while it is read
            return _unreadable(value, error)
        return value

    def _container(self, value: Any, depth: int) -> object:
        items = value.values() if isinstance(value, dict) else value
        if PLAIN_TYPES.issuperset(map(type, items)):
            return value
        if isinstance(value, dict):
            return {key: self.value(item, depth + 1) for key, item in value.items()}
        return [self.value(item, depth + 1) for item in value]

    def _tensor(self, tensor: Any) -> object:
        if tensor.numel() > MAX_ELEMENTS or tensor.is_meta:
            return f"tensor of shape {list(tensor.shape)}, {tensor.dtype}, on {tensor.device}"
        if tensor.is_cpu:
            return tensor.detach().tolist()
        try:
            copy = self._begin(tensor)
        except Exception:  # noqa: BLE001  a device without events raises what it likes; then waiting beats losing the value
            return tensor.detach().tolist()
        self.copies.append(copy)
        return copy


def arrived(value: Any) -> Any:
    """`value` with every copy in it resolved; waits for those that have not arrived. Never raises."""
    if isinstance(value, dict):
        return {key: arrived(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [arrived(item) for item in value]
    if isinstance(value, Copy):
        try:
            return value.value()
        except Exception as error:  # noqa: BLE001  a device that has failed raises at the first thing that reads from it
            return _unreadable(value, error)
    return value


def _unreadable(value: object, error: Exception) -> str:
    return f"{type(value).__name__} that could not be read ({type(error).__name__}: {error})"[:500]
