"""Pairs with source and target swapped."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "swapped",
    title="The batch holds pairs whose source and target are swapped.",
    advice="Swap the two sides of these lines back, and look for more in the same file.",
    family="pair",
)
