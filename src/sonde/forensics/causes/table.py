"""Tables: numbers and cells instead of sentences."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.TABLE,
    title="The batch holds tables of numbers or fields.",
    advice="Leave tables out when text is extracted.",
)
