"""docs/api.md, made of the public names themselves (tools/pages.py writes it).

The names of a package stand in its `__init__.pyi`. What a name is, is the first sentence of its
docstring.
"""

import importlib
import inspect
from typing import Final

import sonde

_WITH_NAMES: Final = ("compat.atorch", "compat.fairseq", "compat.msprobe", "compat.nemo")
"""Packages inside packages that promise names of their own."""
PACKAGES: Final = sorted(
    [name for name in dir(sonde) if inspect.ismodule(getattr(sonde, name))] + list(_WITH_NAMES)
)
_OPENING: Final = """# The public API

<!-- Written by tools/pages.py from the code. Do not edit: change the docstrings and run it. -->

Every public name, in a sentence. On the documentation site, the page of a package shows the
arguments of its names, with examples; in Python, `help(sonde.Recorder)` does. A name loads when you
first use it: `import sonde` loads no torch. Names that are not listed here may change without
notice; [CONTRIBUTING](../CONTRIBUTING.md) says how a public name may change.
"""


def api_page() -> str:
    """The whole page."""
    root = [name for name in dir(sonde) if name not in PACKAGES]
    sections = [
        _section("sonde", root),
        *(_section(f"sonde.{package}", names_of(package)) for package in PACKAGES),
    ]
    return "\n".join([_OPENING, *sections])


def names_of(package: str) -> list[str]:
    """The public names of a package; a plain module promises its classes and functions that have no
    underscore.
    """
    module = importlib.import_module(f"sonde.{package}")
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    own = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
    ]
    return sorted(name for name in own if not name.startswith("_"))


def _section(module_name: str, names: list[str]) -> str:
    module = importlib.import_module(module_name)
    rows = [f"| `{name}` | {_said(getattr(module, name), name)} |" for name in names]
    return "\n".join(
        [
            f"## `{module_name}`",
            "",
            _first(module.__doc__),
            "",
            "| name | what it is |",
            "| --- | --- |",
            *rows,
            "",
        ]
    )


def _said(value: object, name: str) -> str:
    if name == "__version__":
        return "The version of sonde, as text."
    return _first(inspect.getdoc(value)).replace("|", "\\|")


def _first(doc: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((doc or "").strip().partition("\n\n")[0].split())
