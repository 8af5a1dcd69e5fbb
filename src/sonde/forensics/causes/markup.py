"""Markup: tags, entities, templates."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.MARKUP,
    title="The batch holds markup.",
    advice="Strip tags and templates from the text before it is prepared.",
)
