"""Signs of a text compared with its corpus, shared by the diagnosis and the audit. Pure decisions;
needs no torch.

    profile = profile_of(texts)                       # a few hundred to a few thousand texts of the
                                                      # corpus
    for sign in find_signs(text, profile, tokens):     # strongest first; tokens are optional
        sign.kind, sign.strength, sign.evidence       # GARBLED_TEXT, 0.93, ("it reads like no known
                                                      # language", …)
    find_signs_of_all(texts, profile)                        # many at once: far faster

    pairs = pair_profile_of(sources, targets)
    reading = find_pair_signs(source, target, pairs)        # .pair: copied, swapped, truncated,
                                                      mismatched; .source and .target: signs of each

A sign with a strength of `CLEAR` (0.5) or more is worth showing by itself. Signs are relative to
the corpus: what is normal there is not a sign.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
