"""Control characters in a text."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.CONTROL_CHARACTERS,
    title="The batch holds control characters.",
    advice="Remove control characters when text is prepared.",
)
