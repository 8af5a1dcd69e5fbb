"""Public names that load when they are first used.

A room lists its names once, in the `__init__.pyi` beside its `__init__.py`: type checkers read it, and so does this module, so that
the two cannot differ. A line is `from sonde.train.trainer import Trainer as Trainer`; `from sonde import train as train` is a room.

The `__module__` of a public class or function is the room it is imported from: `sonde.train.Trainer`, also in messages and pickles.
"""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

_ROOT = "sonde"
_LINE = re.compile(r"^from (?P<home>[\w.]+) import (?P<name>\w+) as (?P=name)$", re.MULTILINE)


def public_names(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub beside its `file`."""
    stub = Path(file).with_suffix(".pyi").read_text("utf-8")
    homes = {line["name"]: line["home"] for line in _LINE.finditer(stub)}

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        is_room = home == package
        value = importlib.import_module(f"{home}.{name}") if is_room else getattr(importlib.import_module(home), name)
        if isinstance(value, type | FunctionType) and home not in (f"{_ROOT}.{public}" for public in homes):
            # `sonde.Trainer` is `sonde.train.Trainer`; `sonde.Run` and `sonde.diagnose` are in no room's names.
            room = ".".join(home.split(".")[:2]) if package == _ROOT else package
            value.__module__ = room if name in getattr(sys.modules[room], "__all__", ()) else package
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: names, names
