"""Control characters in a text."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "control_characters",
    title="The batch holds control characters.",
    advice="Remove control characters when text is prepared.",
)
