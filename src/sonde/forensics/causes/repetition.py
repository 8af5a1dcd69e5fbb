"""A text that repeats itself, with any period."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "repetition",
    title="The batch holds a text that repeats itself on and on.",
    advice="Filter documents by how much of them repeats.",
)
