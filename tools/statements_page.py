"""docs/statements.md, made of the tables in tests/statements/ (tools/pages.py writes it).

A table holds what the manual of an original says: `says`, the `test` that shows it here and, where
sonde differs on purpose, what is done `here` and `why`.
"""

import sys
from pathlib import Path
from typing import Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES: Final = Path(__file__).parents[1] / "tests" / "statements"
ORIGINALS: Final = ("atorch", "fairseq", "dllogger", "msprobe", "nemo")
"""The tables; each original has its address of that name in `sonde.compat`."""
_OPENING: Final = """# What the originals say, and the test that shows it

<!-- Written by tools/pages.py from tests/statements. Do not edit: change a table and run it. -->

What the manuals of the five systems say that sonde's interfaces come from, each statement with a
test that fails if it stops being true here. Of {num} statements, {num_different} differ on purpose:
they stand at the end of each section, with the reason. How to change over is in
[Coming from other systems](coming-from.md).
"""


def read_original(name: str) -> dict[str, Any]:
    """The table of one original."""
    text = (TABLES / f"{name}.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)
    return table


def statements_page() -> str:
    """The whole page."""
    originals = {name: read_original(name) for name in ORIGINALS}
    every = [statement for table in originals.values() for statement in table["statement"]]
    num_different = sum(1 for statement in every if "here" in statement)
    opening = _OPENING.format(num=len(every), num_different=num_different)
    sections = [_section(name, table) for name, table in originals.items()]
    return "\n".join([opening, *sections])


def _section(name: str, table: dict[str, Any]) -> str:
    same = [statement for statement in table["statement"] if "here" not in statement]
    different = [statement for statement in table["statement"] if "here" in statement]
    return "\n".join(
        [
            f"## {table['name']}",
            "",
            f"From {table['document']}. Its address is `sonde.compat.{name}`.",
            "",
            "| statement | shown by |",
            "| --- | --- |",
            *(f"| {statement['says']} | `{statement['test']}` |" for statement in same),
            "",
            "Different on purpose:",
            "",
            "| statement | here | why | shown by |",
            "| --- | --- | --- | --- |",
            *(
                f"| {statement['says']} | {statement['here']} | {statement['why']} |"
                f" `{statement['test']}` |"
                for statement in different
            ),
            "",
        ]
    )
