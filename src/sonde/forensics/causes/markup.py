"""Markup: tags, entities, templates."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "markup", title="The batch holds markup.", advice="Strip tags and templates from the text before it is prepared."
)
