"""Garbled text: character sequences that occur in no language."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "garbled_text",
    title="The batch holds garbled text.",
    advice="Look for more of its kind in the file it came from before you train on.",
)
