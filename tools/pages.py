"""Writes the pages that are made from the code: `python tools/pages.py`; `--check` only names those
that are not up to date.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from api_page import api_page
from cli_page import cli_page
from module_map import architecture_page
from statements_page import statements_page

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "api.md": api_page,
    "architecture.md": architecture_page,
    "cli.md": cli_page,
    "statements.md": statements_page,
}


def main() -> int:
    """Write the pages, or compare them."""
    made = {DOCS / name: make() for name, make in PAGES.items()}
    stale = [path for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.write_text(made[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"docs/{path.name} is not what the code says", file=sys.stderr)
    if stale:
        print("hint: .venv/bin/python tools/pages.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
