"""Log lines: timestamps, levels, addresses."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule("log", title="The batch holds lines of a log.", advice="Leave logs out of the corpus.")
