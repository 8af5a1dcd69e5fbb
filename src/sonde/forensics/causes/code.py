"""Program code in a corpus of prose."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.CODE,
    title="The batch holds program code.",
    advice="Keep code out of the corpus, or in a part of its own.",
)
