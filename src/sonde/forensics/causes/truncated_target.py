"""Pairs in which one side was cut off."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "truncated",
    title="The batch holds pairs of which one side is cut off.",
    advice="Check where these lines were cut: length limits, sentence splitting.",
    family="pair",
)
