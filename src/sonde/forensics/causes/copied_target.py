"""Targets that are copies of their sources."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "copied",
    title="The batch holds targets that are copies of their sources.",
    advice="Leave out pairs whose two sides are the same.",
    family="pair",
)
