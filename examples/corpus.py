"""A small corpus for the examples of the integrations: sentences of a few words, one of which is
garbled.
"""

import random

GARBLED = 333
_NOUNS = (
    "the cat",
    "an old dog",
    "my sister",
    "the red bird",
    "a tired farmer",
    "the tall teacher",
    "a small child",
)
_VERBS = (
    "walks to",
    "looks at",
    "paints",
    "remembers",
    "runs past",
    "sings about",
    "waits near",
    "dreams of",
)
_PLACES = (
    "the green hill",
    "a quiet river",
    "the long road",
    "an empty house",
    "the market",
    "the blue sea",
)
_TIMES = (
    "in the morning",
    "every day",
    "at night",
    "after the rain",
    "in early spring",
    "before lunch",
)


def sentences(num: int = 480, *, garbled: int | None = GARBLED) -> list[str]:
    """Sentences that are easy to learn, and one that is not."""
    rng = random.Random(7)
    found = [
        " ".join(rng.choice(words) for words in (_NOUNS, _VERBS, _PLACES, _TIMES))
        for _ in range(num)
    ]
    if garbled is not None:
        found[garbled] = "".join(chr(rng.randrange(33, 126)) for _ in range(48))
    return found
