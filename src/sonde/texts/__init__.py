"""Signs of a text: what it is like beside its corpus. Decisions only, no torch; the diagnosis and the audit of a corpus share them.

    profile = profile_of(texts)                       # a few hundred to a few thousand texts of the corpus
    for sign in read_text(text, profile, tokens):     # strongest first; tokens are optional
        sign.kind, sign.strength, sign.evidence       # GARBLED_TEXT, 0.93, ("it reads as no language", …)
    read_texts(texts, profile)                        # many at once: far faster

    pairs = pair_profile_of(sources, targets)
    reading = read_pair(source, target, pairs)        # .pair: copied, swapped, truncated, mismatched; .source and .target: signs of each

A strength of `CLEAR` (0.5) and more is worth showing by itself. Everything is relative to the corpus: what is normal there is no sign.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
