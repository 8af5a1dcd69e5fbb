"""A sample without any letters or digits."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.EMPTY,
    title="The batch holds samples without a word.",
    advice="Leave out lines without letters or digits.",
)
