"""Flags made from a settings class: its fields, their types, and the docstrings under them as help.

All of them are optional: what a user did not give is not there, so that a file and defaults can fill it in.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from typing import Annotated, Any, TypedDict, get_type_hints

from cyclopts import Parameter


def flags_of(
    settings: type[Any], *, leave_out: tuple[str, ...] = (), prefix: str = "", also: Mapping[str, Any] | None = None
) -> Any:
    """A typed dict with a key for every field of a settings dataclass; `also` adds keys of its own, by annotation."""
    hints = get_type_hints(settings)
    helps = field_docstrings(settings)
    keys = dict(also or {})
    for field in fields(settings):
        if field.name in leave_out:
            continue
        default = "" if field.default in (MISSING, None) else f" ({_default_text(field.default)})"
        told = Parameter(help=f"{helps[field.name].rstrip('.')}{default}.")
        keys[prefix + field.name] = Annotated[hints[field.name], told]
    return TypedDict(f"{settings.__name__}Flags", keys, total=False)  # type: ignore[operator]  # a TypedDict made at run time


def field_docstrings(settings: type[Any]) -> dict[str, str]:
    """The string under each field of a class and of those it inherits from, on one line."""
    found: dict[str, str] = {}
    for base in settings.__bases__:
        if is_dataclass(base):
            found |= field_docstrings(base)
    # A public class names its room as its module; where it was written is known to its functions.
    tree = ast.parse(inspect.getsource(sys.modules[settings.__post_init__.__module__]))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == settings.__name__).body
    for node, after in pairwise(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[node.target.id] = " ".join(after.value.value.split())
    return found


def _default_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
