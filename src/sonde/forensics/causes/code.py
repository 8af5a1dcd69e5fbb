"""Program code in a corpus of prose."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "code", title="The batch holds program code.", advice="Keep code out of the corpus, or in a part of its own."
)
