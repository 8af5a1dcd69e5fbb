"""Text entirely in capitals."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "shouting", title="The batch holds text in capitals.", advice="Leave such text out, or put it into small letters."
)
