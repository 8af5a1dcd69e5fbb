"""The numbers in a record's data, for trackers that draw curves of numbers and nothing else."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def scalars(data: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Each number in `data` with its name; dicts are looked into (`a/b`), what is no single number is left out."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{name}/")
            continue
        number = _number(value)
        if number is not None:
            yield name, number


def _number(value: object) -> float | None:
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if isinstance(value, (int, float, np.number, np.bool_)) and not isinstance(value, np.complexfloating):
        try:
            return float(value)
        except OverflowError:
            return None
    return None
