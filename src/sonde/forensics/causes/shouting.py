"""Text entirely in capitals."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.SHOUTING,
    title="The batch holds text in capitals.",
    advice="Leave such text out, or put it into small letters.",
)
