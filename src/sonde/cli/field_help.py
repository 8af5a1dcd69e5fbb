"""Flags made from a settings class: its fields, their types, and the docstrings under them as help.

All of them are optional: what a user did not give is not there, so that a file and defaults can fill it in.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Annotated, Any, TypedDict, get_type_hints

from cyclopts import Parameter


def flags_of(settings: type[Any], *, leave_out: tuple[str, ...] = (), also: Mapping[str, Any] | None = None) -> Any:
    """A typed dict with a key for every field of a settings dataclass; `also` adds keys of its own, by annotation."""
    hints = get_type_hints(settings)
    helps = field_docstrings(settings)
    keys = dict(also or {})
    for field in fields(settings):
        if field.name in leave_out:
            continue
        default = "" if field.default in (MISSING, None) else f" ({_default_text(field.default)})"
        keys[field.name] = Annotated[hints[field.name], Parameter(help=f"{helps[field.name].rstrip('.')}{default}.")]
    return TypedDict(f"{settings.__name__}Flags", keys, total=False)  # type: ignore[operator]  # a TypedDict made at run time


def field_docstrings(settings: type[Any]) -> dict[str, str]:
    """The string under each field of a class, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
    found: dict[str, str] = {}
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
