"""Text in a language that is not one of the corpus's own."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.FOREIGN_LANGUAGE,
    title="The batch holds text in a language that the corpus is not in.",
    advice="Filter the corpus by language.",
)
