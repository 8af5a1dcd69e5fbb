"""The numbers in the data of a record, by name, for trackers that take single numbers. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from sonde.records.values import as_number


def scalars(data: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number in `data` with its name; dicts are flattened (`a/b`), everything else is
    skipped.
    """
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{name}/")
            continue
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if getattr(value, "size", 0) == 1:  # a number or an array of numpy
            value = value.item()
        number = None if isinstance(value, str) else as_number(value)
        if number is not None:
            yield name, number
