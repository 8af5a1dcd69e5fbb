"""Signs of a text: what it is like beside its corpus. Decisions only, no torch; the diagnosis and the audit of a corpus share them.

    profile = profile_of(texts)                       # a few hundred to a few thousand texts of the corpus
    for sign in read_text(text, profile, tokens):     # strongest first; tokens are optional
        sign.kind, sign.strength, sign.evidence       # GARBLED_TEXT, 0.93, ("it reads as no language", …)
    read_texts(texts, profile)                        # many at once: far faster

    pairs = pair_profile_of(sources, targets)
    reading = read_pair(source, target, pairs)        # .pair: copied, swapped, truncated, mismatched; .source and .target: signs of each

A strength of `CLEAR` (0.5) and more is worth showing by itself. Everything is relative to the corpus: what is normal there is no sign.

- `signs`: the kinds, `read_text`, `read_texts`; `pairs`: the same for a source and its target
- `profile`: what is usual in a corpus, `measures`: numbers of thousands of texts at once, `letters`: tables of characters
- `densities`: marks of markup, code, tables, logs and wrong decoding; `repetition`; `languages`: which language a text is in
- `translations`: which words of two languages go together, learnt from the corpus
- `duplicates`: the same text again within a batch; `fingerprints`: in a whole corpus, exactly or nearly
- `corpora`: the texts of files and data directories, piece by piece; `audit`: all of it in one pass
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
