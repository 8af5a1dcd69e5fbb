"""Bad rows for the audit: what has no business in a corpus of prose, by kind; and the clean corpora
that they are planted into.
"""

import base64
import functools
import gettext
import gzip
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.planted_texts import FOREIGN

from sonde.demo.corpus import read_docstrings

Plant = Callable[[str, random.Random], str]
"""A clean text and a generator to a bad one."""

_LOCALE: Final = Path("/usr/share/locale")
_DATA: Final = Path("/work/shared/data")
_WORDS: Final = (
    *("server", "index", "value", "user", "file", "path", "count", "result", "item", "list"),
    *("name", "node", "table", "query", "cache", "buffer", "token", "config", "error", "state"),
)


def word(generator: random.Random) -> str:
    return generator.choice(_WORDS)


# --- corpora
# ------------------------------------------------------------------------------------------------


def captions(language: str) -> list[str]:
    """Multi30k: captions of about twelve words."""
    with gzip.open(_DATA / f"multi30k/train.{language}.gz", "rt") as file:
        return [line.strip() for line in file]


def plays() -> list[str]:
    """Speeches of Shakespeare."""
    return [
        part for part in (_DATA / "tinyshakespeare.txt").read_text().split("\n\n") if part.strip()
    ]


def catalogue(language: str) -> list[str]:
    """Sentences of four words and more out of gettext catalogues."""
    return [target for _, target in catalogue_pairs(language)]


def catalogue_pairs(language: str) -> list[tuple[str, str]]:
    found = {}
    for path in sorted((_LOCALE / language / "LC_MESSAGES").glob("*.mo")):
        if "iso_" in path.name:
            continue
        with path.open("rb") as file:
            # no public way to list them
            messages = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        for source, target in messages.items():
            if (
                isinstance(source, str)
                and _is_sentence(source)
                and _is_sentence(target)
                and source != target
            ):
                found[source.strip()] = target.strip().replace("\xa0", " ")
    return list(found.items())


def _is_sentence(text: str) -> bool:
    return len(text.split()) >= 4 and not re.search(r"[%<>{}\n\t\x04/=\\_`$&|@\[\]]|--|0x", text)


def manual_pages(sections: int = 1) -> list[str]:
    """Paragraphs of running text out of the English manual."""
    found = []
    for path in sorted(
        path
        for number in range(1, sections + 1)
        for path in Path(f"/usr/share/man/man{number}").glob("*.gz")
    ):
        with gzip.open(path, "rt", errors="replace") as file:
            for part in re.split(
                r"\n\.(?:PP|P|LP|TP|IP|Pp|SH|SS|RS|RE|It|sp|br)[^\n]*\n", file.read()
            ):
                text = (
                    re.sub(r"\\f[A-Z]|\\&|\\%|\\\|", "", part)
                    .replace("\\-", "-")
                    .replace("\\(aq", "'")
                )
                text = " ".join(
                    line for line in text.split("\n") if not line.startswith((".", "'"))
                )
                if (
                    len(text.split()) >= 12
                    and "\\" not in text
                    and text[:1].isupper()
                    and text.rstrip().endswith(".")
                ):
                    found.append(text.strip())
    return list(dict.fromkeys(found))


def docstrings() -> list[str]:
    """Paragraphs of the documentation inside Python's standard library."""
    found = [
        " ".join(part.split())
        for text in read_docstrings(seed=0)
        for part in text.split("\n\n")
        if "  " not in part.strip() and ">>>" not in part
    ]
    return list(dict.fromkeys(text for text in found if len(text.split()) >= 8))


# --- faults
# ------------------------------------------------------------------------------------------------


def _noise(text: str, generator: random.Random) -> str:
    signs = string.printable[:94] + " " * 8
    return "".join(generator.choice(signs) for _ in text)


def _scrambled(text: str, generator: random.Random) -> str:
    return "".join(generator.sample(text, len(text)))


def _words_scrambled(text: str, generator: random.Random) -> str:
    return " ".join("".join(generator.sample(word, len(word))) for word in text.split())


def _binary(text: str, generator: random.Random) -> str:
    return generator.randbytes(len(text)).decode("utf-8", "replace")


def _encoded(text: str, generator: random.Random) -> str:
    return base64.b64encode(generator.randbytes(len(text) * 3 // 4)).decode()


def _shifted(text: str, generator: random.Random) -> str:
    by = generator.randrange(5, 21)
    return "".join(
        chr((ord(letter) - 97 + by) % 26 + 97) if "a" <= letter <= "z" else letter
        for letter in text.lower()
    )


def _hex(text: str, generator: random.Random) -> str:
    return " ".join(f"{byte:02x}" for byte in text.encode())


def _accented(text: str) -> str:
    """With a few letters that are not ASCII, as real text has them."""
    found = text.replace("'", "’").replace('"', "“")
    return (
        re.sub(r"\be|(?<=c)a", lambda match: {"e": "é", "a": "ä"}[match[0]], found)
        if found.isascii()
        else found
    )


def _latin1(text: str, generator: random.Random) -> str:
    return _with_accent(text).encode().decode("cp1252", "replace").replace("\ufffd", "")


def _with_accent(text: str) -> str:
    found = _accented(text)
    return found + " Café, naïve." if found.isascii() else found


def _twice(text: str, generator: random.Random) -> str:
    return _with_accent(text).encode().decode("latin-1").encode().decode("latin-1")


def _lost(text: str, generator: random.Random) -> str:
    found = text if re.search("[à-ü]", text) else text + " Café, naïve."
    return found.encode("latin-1", "ignore").decode("utf-8", "replace")


@functools.cache
def _pool(language: str) -> tuple[str, ...]:
    return tuple(catalogue(language))


def foreign(languages: tuple[str, ...]) -> Plant:
    """Sentences in other languages, as many as make up about the length of the text."""

    def plant(text: str, generator: random.Random) -> str:
        pool = _pool(generator.choice(languages))
        found = [generator.choice(pool)]
        while len(" ".join(found)) < 0.7 * len(text) and len(found) < 8:
            found.append(generator.choice(pool))
        return " ".join(found)

    return plant


_OTHER_SCRIPTS: Final = (
    "今天早上我们去了市场买了很多水果和蔬菜，然后一起回家做饭。",
    "昨日は友達と一緒に映画を見に行って、とても楽しかったです。",
    "ذهبنا إلى السوق في الصباح الباكر واشترينا الخبز والجبن والفواكه.",
    "오늘 아침에 우리는 시장에 가서 과일과 야채를 많이 샀습니다.",
    "सुबह हम बाज़ार गए और बहुत सारे फल और सब्ज़ियाँ खरीदीं।",
    "בבוקר הלכנו לשוק וקנינו הרבה פירות וירקות טריים.",
)


def _script(text: str, generator: random.Random) -> str:
    chosen = generator.choice((*_OTHER_SCRIPTS, FOREIGN["Russian"], FOREIGN["Greek"]))
    return chosen[: max(len(text), 15)]


def _html(text: str, generator: random.Random) -> str:
    tags = (
        '<p class="{0}">{1}</p>',
        "<div id='{0}'><a href=\"/{0}/{0}.html\">{1}</a></div>",
        "<li><b>{1}</b>&nbsp;<i>{0}</i></li>",
    )
    return " ".join(
        generator.choice(tags).format(word(generator), part) for part in _parts(text, generator)
    )


def _wiki(text: str, generator: random.Random) -> str:
    forms = (
        "[[{0}|{1}]] '''{0}'''",
        "{{{{{0}|{1}}}}}",
        "== {0} == {1} <ref>{0}</ref>",
        "* [[{0}]]: ''{1}''",
    )
    return " ".join(
        generator.choice(forms).format(word(generator), part) for part in _parts(text, generator)
    )


def _latex(text: str, generator: random.Random) -> str:
    forms = (
        "\\begin{{{0}}} {1} \\end{{{0}}}",
        "\\textbf{{{1}}} \\cite{{{0}}}",
        "\\section{{{0}}} \\label{{sec:{0}}} {1}",
        "$\\alpha_{{1}} + \\frac{{a}}{{b}}$ {1}",
    )
    return " ".join(
        generator.choice(forms).format(word(generator), part) for part in _parts(text, generator)
    )


def _parts(text: str, generator: random.Random) -> list[str]:
    words = text.split()[:40]
    return [" ".join(words[start : start + 4]) for start in range(0, len(words), 4)] or [
        word(generator)
    ]


def _template(*lines: str, joined: str = " ") -> Plant:
    def plant(text: str, generator: random.Random) -> str:
        found: list[str] = []
        while len(joined.join(found)) < max(len(text), 40):
            line = generator.choice(lines)
            line = re.sub(r"(?<![A-Za-z])W(?![A-Za-z])", lambda _: word(generator), line)
            found.append(
                re.sub(r"(?<![A-Z])N(?![A-Za-z])", lambda _: str(generator.randrange(1, 500)), line)
            )
        return joined.join(found)

    return plant


_python = _template(
    "def W_W(self, W, W=None):",
    "    for W in range(len(W)):",
    "    return self.W[W]",
    "if W is not None and W.W(W):",
    "W = [W(W) for W in W]",
    "raise ValueError(f'{W}')",
    "import W.W as W",
)
_c = _template(
    "for (int i = 0; i < W; i++) {",
    "W->W = malloc(N * sizeof(*W));",
    "if (!W) return -N;",
    "static int W_W(struct W *W, size_t W)",
    'printf("%d\\n", W[N]);',
    "#include <W.h>",
)
_javascript = _template(
    "const W = await fetch(`/api/${W}`);",
    "W.forEach((W) => W.push(W));",
    "export default function W({ W, W }) {",
    "if (W === null || W.length > N) { return; }",
    "let W = document.getElementById('W');",
)
_sql = _template(
    "SELECT W, COUNT(*) FROM W WHERE W = 'N' GROUP BY W;",
    "INSERT INTO W (W, W) VALUES (N, 'W');",
    "UPDATE W SET W = N WHERE W_id = N;",
)
_csv = _template("N,W,N.N,N,W,N", "W,N,N,N.N,N,W", "N,N,N,N,W,N")
_tsv = _template("W\tN\tN.N\tN", "W\tW\tN\tN")
_grid = _template("| W | N | N.N | N |", "| W | W | N | N |")
_syslog = _template(
    "Nov N 10:3N:22 W W[N]: W=W W=N",
    "2024-03-N 12:0N:31,N ERROR W.W failed W=N",
    "[2024-03-17T08:15:31] INFO W: N W in 0x7fffN",
    "2024-03-11 23:59:01 DEBUG W W id=N",
)
_access = _template(
    '10.0.N.N - - [17/Mar/2024:08:15:31 +0000] "GET /W/W?W=N HTTP/1.1" 200 N',
    '192.168.N.N - W [17/Mar/2024:08:15:31] "POST /W HTTP/1.1" 404 N',
)
_json = _template('{"W": N, "W": ["W", "W"], "W": {"W": "W"}}', '{"W_id": N, "W": null, "W": true}')


def _shout(text: str, generator: random.Random) -> str:
    return text.upper()


def _one_word(text: str, generator: random.Random) -> str:
    return " ".join([generator.choice(text.split() or ["x"])] * max(len(text.split()), 8))


def _phrase(text: str, generator: random.Random) -> str:
    words = (text.split() * 3)[: generator.randrange(3, 25)]
    return " ".join(words * generator.randrange(4, 8))


def _characters(text: str, generator: random.Random) -> str:
    return generator.choice(["-=", "a", "ha", ". ", "xyz", "☆", "0"]) * max(len(text) // 2, 12)


def _control(text: str, generator: random.Random) -> str:
    found = list(text)
    for _ in range(max(len(text) // 40, 2)):
        found.insert(
            generator.randrange(len(found) + 1), generator.choice("\x00\x01\x07\x08\x0e\x1b\x7f")
        )
    return "".join(found)


def _nothing(text: str, generator: random.Random) -> str:
    return generator.choice(["", " ", "\t", "...", "--", "-", "?!", "* * *"])


def _long(text: str, generator: random.Random) -> str:
    return text  # made by the harness, out of many clean texts


TUNE_FOREIGN: Final = ("nl", "tr", "pl", "it")
REPORT_FOREIGN: Final = ("sv", "cs", "fi", "pt_BR", "ro", "hu")

FAULTS: Final[dict[str, tuple[str, Plant]]] = {
    "noise": ("garbled_text", _noise),
    "letters scrambled": ("garbled_text", _scrambled),
    "letters of words scrambled": ("garbled_text", _words_scrambled),
    "random bytes": ("garbled_text", _binary),
    "base 64": ("garbled_text", _encoded),
    "alphabet shifted": ("garbled_text", _shifted),
    "hex dump": ("garbled_text", _hex),
    "UTF-8 read as Windows-1252": ("mis_decoded", _latin1),
    "UTF-8 encoded twice": ("mis_decoded", _twice),
    "Latin-1 read as UTF-8": ("mis_decoded", _lost),
    "other language": ("foreign_language", foreign(TUNE_FOREIGN)),
    "other script": ("other_script", _script),
    "HTML": ("markup", _html),
    "wiki": ("markup", _wiki),
    "LaTeX": ("markup", _latex),
    "Python": ("code", _python),
    "C": ("code", _c),
    "JavaScript": ("code", _javascript),
    "SQL": ("code", _sql),
    "JSON": ("code", _json),
    "CSV": ("table", _csv),
    "TSV": ("table", _tsv),
    "table with bars": ("table", _grid),
    "system log": ("log", _syslog),
    "access log": ("log", _access),
    "capitals": ("shouting", _shout),
    "one word repeated": ("repetition", _one_word),
    "phrase repeated": ("repetition", _phrase),
    "characters repeated": ("repetition", _characters),
    "control characters": ("control_characters", _control),
    "nothing": ("empty", _nothing),
    "many texts in one": ("over_long", _long),
}
"""What is planted, with the kind of sign it should be named."""

LATIN_ONLY: Final = frozenset(
    {
        "alphabet shifted",
        "UTF-8 read as Windows-1252",
        "UTF-8 encoded twice",
        "Latin-1 read as UTF-8",
        "other script",
    }
)
"""Faults that are none, or another, in a corpus of another script."""
