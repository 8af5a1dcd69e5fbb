"""A sample without any letters or digits."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "empty", title="The batch holds samples without a word.", advice="Leave out lines without letters or digits."
)
