"""Tables: numbers and cells instead of sentences."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "table", title="The batch holds tables of numbers or fields.", advice="Leave tables out when text is extracted."
)
