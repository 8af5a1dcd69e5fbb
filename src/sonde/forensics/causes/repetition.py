"""A text that repeats itself, with any period."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.REPETITION,
    title="The batch holds a text that repeats itself on and on.",
    advice="Filter documents by how much of them repeats.",
)
