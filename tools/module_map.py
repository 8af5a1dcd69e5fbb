"""The part of docs/architecture.md that lists every module, made of their docstrings
(tools/pages.py writes it).
"""

import ast
import re
import sys
from pathlib import Path
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: Final = Path(__file__).parents[1]
PACKAGE: Final = PROJECT / "src" / "sonde"
_MARK: Final = (
    "<!-- From here on written by tools/pages.py: change the docstrings and run it. -->\n"
)


def architecture_page() -> str:
    """The page as it stands, with the list of modules made anew."""
    page = (PROJECT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return (
        page.partition(_MARK)[0]
        + _MARK
        + "\n"
        + "\n".join(_package(package) for package in packages())
    )


def packages() -> list[str]:
    """Folders of the package with code in them, those in the highest layer first."""
    found = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return [name for layer in layers() for name in layer if name in found]


def layers() -> list[list[str]]:
    """The layers that import-linter holds, high to low."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    written: list[str] = next(
        contract["layers"] for contract in contracts if contract["id"] == "layers"
    )
    return [re.findall(r"\w+", line) for line in written]


def _package(package: str) -> str:
    modules = sorted(
        path for path in (PACKAGE / package).rglob("*.py") if path.name != "__init__.py"
    )
    rows = [
        f"| `{path.relative_to(PACKAGE / package).with_suffix('')}` | {_first_paragraph(path)} |"
        for path in modules
    ]
    opening = _first_paragraph(PACKAGE / package / "__init__.py")
    return "\n".join(
        [f"### {package}/", "", opening, "", "| module | is |", "| --- | --- |", *rows, ""]
    )


def _first_paragraph(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(doc.partition("\n\n")[0].split()).replace("|", "\\|")
