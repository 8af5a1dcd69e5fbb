"""Signs of a text: what it is like beside its corpus. Decisions only, no torch; the diagnosis and the audit of a corpus share them."""
