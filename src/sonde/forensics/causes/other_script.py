"""Text in a script that is not one of the corpus's own."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "other_script",
    title="The batch holds text in a script that the corpus is not in.",
    advice="Filter the corpus by script.",
)
