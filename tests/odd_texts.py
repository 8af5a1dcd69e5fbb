"""Small corpora of plain sentences, and texts that do not belong in them, one of each kind."""

import random

from sonde.texts import signs

_SUBJECTS = (
    "The old man",
    "A young woman",
    "My neighbour",
    "The teacher",
    "Our little dog",
    "A tired soldier",
    "The baker",
)
_VERBS = (
    "walks along",
    "looks at",
    "remembers",
    "is painting",
    "often talks about",
    "runs across",
    "waits near",
)
_OBJECTS = (
    "the green river",
    "a small boat",
    "the market square",
    "an empty house",
    "the railway bridge",
    "his garden",
)
_ENDS = (
    "in the morning",
    "with two friends",
    "while it rains",
    "before the sun goes down",
    "and says nothing",
    "every day",
)
FRENCH = (
    "Le petit train de la vallée part chaque matin et ne revient que le soir avec les habitants du"
    " village."
)


def sentences(seed: int, num: int) -> list[str]:
    generator = random.Random(seed)

    def sentence() -> str:
        return (
            " ".join(generator.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS))
            + "."
        )

    return [" ".join(sentence() for _ in range(generator.choice((1, 1, 2, 3)))) for _ in range(num)]


ODD = {
    signs.GARBLED_TEXT: "hTe rtnlu ogn mwtse eht irevr gnaol eht bcdrgei ddna sasy tnhogni",
    signs.MIS_DECODED: (
        "The baker looks at the cafÃ© with two friends and waits near the rÃ¼nning river."
    ),
    signs.OTHER_SCRIPT: "Вечером мы сидели на берегу реки и слушали, как ветер шумит в деревьях.",
    signs.FOREIGN_LANGUAGE: FRENCH,
    signs.MARKUP: (
        '<div class="item"><a href="/x/y.html">The old man</a> walks</div> <p>along the'
        " <b>river</b></p>"
    ),
    signs.CODE: (
        "for (int i = 0; i < count; i++) { total->value[i] = get_value(list, i); } return total;"
    ),
    signs.TABLE: "| 14 | 2.5 | 7 | 183 | 4 | 12 | 9.75 | 3 |",
    signs.LOG: "2024-03-11 23:59:01 ERROR server[412]: request failed id=77 code=503 from 10.0.3.7",
    signs.SHOUTING: "THE OLD MAN WALKS ALONG THE GREEN RIVER IN THE MORNING.",
    signs.REPETITION: "the market square every day " * 6,
    signs.CONTROL_CHARACTERS: "The old man \x00walks along the green river\x07 in the morning.",
    signs.EMPTY: " ... ",
    signs.OVER_LONG: " ".join(sentences(5, 300)),
}


_PAIR_SUBJECTS = (
    ("The old man", "Der alte Mann"),
    ("A young woman", "Eine junge Frau"),
    ("The teacher", "Der Lehrer"),
    ("My brother", "Mein Bruder"),
)
_PAIR_VERBS = (
    ("sees", "sieht"),
    ("buys", "kauft"),
    ("paints", "malt"),
    ("forgets", "vergisst"),
    ("carries", "trägt"),
)
_PAIR_OBJECTS = (
    ("the white house", "das weiße Haus"),
    ("two chairs", "zwei Stühle"),
    ("a long letter", "einen langen Brief"),
    ("the clock", "die Uhr"),
)
_PAIR_ENDS = (
    ("near the river every morning", "jeden Morgen am Fluss"),
    ("in the city", "in der Stadt"),
    ("behind the old church", "hinter der alten Kirche"),
)


def parallel_texts(seed: int, num: int) -> list[tuple[str, str]]:
    generator = random.Random(seed)

    def one() -> tuple[str, str]:
        chosen = [
            generator.choice(words)
            for words in (_PAIR_SUBJECTS, _PAIR_VERBS, _PAIR_OBJECTS, _PAIR_ENDS)
        ]
        return (
            " ".join(part[0] for part in chosen) + ".",
            " ".join(part[1] for part in chosen) + ".",
        )

    return [one() for _ in range(num)]


BAD = [
    "<p class='x'><b>The old</b></p> <a href='/x/y'>river</a>",
    "hTe rtnlu ogn mwtse eht irevr gnaol eht bcdrgei",
    ODD["foreign_language"],
    "",
]


def clean_texts() -> list[str]:
    return list(
        dict.fromkeys(
            f"{text} {other}"
            for text, other in zip(sentences(1, 900), sentences(2, 900), strict=True)
        )
    )
