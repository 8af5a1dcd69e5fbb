"""Targets that are copies of their sources."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import pairs

RULE: Final = text_rule(
    pairs.COPIED,
    title="The batch holds targets that are copies of their sources.",
    advice="Leave out pairs whose two sides are the same.",
    family="pair",
)
