"""Text in another script than the corpus."""

from typing import Final

from sonde.forensics.causes.text_kind import text_rule
from sonde.texts import signs

RULE: Final = text_rule(
    signs.OTHER_SCRIPT,
    title="The batch holds text in a script that the corpus is not in.",
    advice="Filter the corpus by script.",
)
