"""Text in a script that is not one of the corpus's own."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.OTHER_SCRIPT,
    title="The batch holds text in a script that the corpus is not in.",
    advice="Filter the corpus by script.",
)
