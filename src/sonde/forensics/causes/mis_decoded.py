"""Mis-decoded text: bytes of one character set read as another."""

from sonde.forensics.causes.text_kind import text_rule

RULE = text_rule(
    "mis_decoded",
    title="The batch holds text that was decoded with the wrong character set.",
    advice="Decode the file it came from with its real character set and prepare it again.",
)
