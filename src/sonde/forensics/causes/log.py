"""Log lines: timestamps, levels, addresses."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.LOG,
    title="The batch holds lines of a log.",
    advice="Leave logs out of the corpus.",
)
