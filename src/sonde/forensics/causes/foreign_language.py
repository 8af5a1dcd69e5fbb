"""Text in a language that is not one of the corpus's own."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "foreign_language",
    title="The batch holds text in a language that the corpus is not in.",
    advice="Filter the corpus by language.",
)
