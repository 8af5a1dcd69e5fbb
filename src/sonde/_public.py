"""Public names that load when they are first used.

A package lists its names once, in the `__init__.pyi` beside its `__init__.py`: type checkers read
it, and so does this module, so that the two cannot differ. A line is `from sonde.train.trainer
import Trainer as Trainer`; `from sonde import train as train` is a package. Loading a name moves
none of the global random generators.
"""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^from (?P<home>[\w.]+) import (?P<name>\w+) as (?P=name)$", re.MULTILINE)


def public_names(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the stub beside its `file`."""
    stub = Path(file).with_suffix(".pyi").read_text("utf-8")
    homes = {line["name"]: line["home"] for line in _LINE.finditer(stub)}

    def load(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _generators_kept():
            if home == package:
                value: object = importlib.import_module(f"{home}.{name}")
            else:
                value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(homes)
    return load, lambda: names, names


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the global generators as they are: some libraries draw from them when they are loaded,
    and a training may have seeded them already.
    """
    undo: list[Callable[[], object]] = []
    if "random" in sys.modules:
        python: Any = sys.modules["random"]
        undo.append(partial(python.setstate, python.getstate()))
    if "numpy.random" in sys.modules:
        numpy: Any = sys.modules["numpy.random"]
        undo.append(partial(numpy.set_state, numpy.get_state()))
    if "torch.random" in sys.modules:
        torch: Any = sys.modules["torch.random"]
        undo.append(partial(torch.set_rng_state, torch.get_rng_state()))
    try:
        yield
    finally:
        for put_back in undo:
            put_back()
