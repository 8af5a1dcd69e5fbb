"""Command-line flags generated from a settings class: its fields, their types, and their docstrings as help.

All flags are optional. A flag that was not given is absent, so that a file and defaults can fill it in.
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
    """Return a TypedDict with a key for every field of a settings dataclass. `also` adds further annotated keys."""
    hints = get_type_hints(settings)
    helps = field_docstrings(settings)
    keys = dict(also or {})
    for field in fields(settings):
        if field.name in leave_out:
            continue
        default = "" if field.default in (MISSING, None) else f" (default: {_default_text(field.default)})"
        told = Parameter(help=f"{helps[field.name].rstrip('.')}{default}.")
        keys[prefix + field.name] = Annotated[hints[field.name], told]
    return TypedDict(f"{settings.__name__}Flags", keys, total=False)  # type: ignore[operator]  # a TypedDict made at run time


def field_docstrings(settings: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a class and its base classes, on one line."""
    found: dict[str, str] = {}
    for base in settings.__bases__:
        if is_dataclass(base):
            found |= field_docstrings(base)
    # A public class names its package as its module, but its functions know where it was defined.
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
