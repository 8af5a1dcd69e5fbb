"""Pairs in which one side was cut off."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import pairs

RULE: Final = text_rule(
    pairs.TRUNCATED,
    title="The batch holds pairs of which one side is cut off.",
    advice="Check where these lines were cut: length limits, sentence splitting.",
    family="pair",
)
