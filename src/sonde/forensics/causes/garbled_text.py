"""Garbled text: character sequences that occur in no language."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.GARBLED_TEXT,
    title="The batch holds garbled text.",
    advice="Look for more of its kind in the file it came from before you train on.",
)
