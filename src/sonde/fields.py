"""Limits of the fields of settings classes, stated in their annotations and checked by
`check_fields`.

    num_heads: Positive = 4

Apart from `errors`, because it loads msgspec, which the logger does without.
"""

import sys
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from sonde.errors import SettingError

_LARGEST = sys.float_info.max
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
"""A whole number, 1 or more."""
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""A whole number, 0 or more."""
PositiveNumber: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=_LARGEST)]
"""A finite number above 0."""
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
"""A finite number, 0 or more."""
Finite: TypeAlias = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
"""A number that is neither infinite nor NaN."""
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1)]
"""A share from 0 up to, not including, 1."""


def check_fields(settings: Any) -> None:
    """Raise SettingError if a field of a settings object has a value that its annotation does not
    allow.

    Checks the fields that are limited to some choices (`Literal`) or to a range (`Positive` and the
    other types here).
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for name, limits in hints.items():
        kinds = (limits, *get_args(limits))
        if not any(get_origin(kind) in (Annotated, Literal) for kind in kinds):
            continue
        value = getattr(settings, name)
        try:
            msgspec.convert(value, limits)
        except msgspec.ValidationError as error:
            choices = [
                choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)
            ]
            hint = f"use one of {', '.join(map(repr, choices))}" if choices else None
            raise SettingError(
                f"{name} is {value!r}", cause=None if choices else str(error), hint=hint
            ) from None
