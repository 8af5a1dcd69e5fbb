"""Pairs with source and target swapped."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import pairs

RULE: Final = text_rule(
    pairs.SWAPPED,
    title="The batch holds pairs whose source and target are swapped.",
    advice="Swap the two sides of these lines back, and look for more in the same file.",
    family="pair",
)
