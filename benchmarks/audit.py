"""The audit of corpora: how many bad rows it finds by kind, how many clean ones it flags, and how
fast it is, beside datatrove's filters.

Rows of 32 kinds are spoiled in corpora of prose, and pairs of nine kinds in parallel texts. The
rules were developed on the corpora, languages and seeds of the half `tune`; `report` has others and
is run with fresh seeds when something changed. Of the texts that the profile is made of 2 % are
planted rows, as in life. Needs a Debian system: gettext catalogues and manual pages are corpora.

    python benchmarks/audit.py [tune|report|speed] [SEED]
"""

import functools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks import audit_texts as texts
from benchmarks.measure import best_cpu_seconds, markdown_table

from sonde.texts.audit import AuditSettings, audit
from sonde.texts.corpora import open_corpus
from sonde.texts.fingerprints import fingerprints_of
from sonde.texts.pairs import find_signs_of_pairs, pair_profile_of
from sonde.texts.profile import profile_of
from sonde.texts.signs import CLEAR, Sign, find_signs_of_all

NUM_CLEAN: Final = 6000
NUM_PLANTED: Final = 20
PROFILE: Final = 3000
BAD_SHARE: Final = 0.02
NUM_FOR_PEERS: Final = 1000
GATE: Final = 5
"""Megabytes a second of one core, without near-duplicates."""
Pair = tuple[str, str]

CORPORA: Final[dict[str, dict[str, Callable[[], list[str]]]]] = {
    "tune": {
        "captions, English": functools.partial(texts.captions, "en"),
        "plays, English": texts.plays,
        "program messages, French": functools.partial(texts.catalogue, "fr"),
    },
    "report": {
        "captions, German": functools.partial(texts.captions, "de"),
        "manual pages, English": texts.manual_pages,
        "program messages, Spanish": functools.partial(texts.catalogue, "es"),
        "program messages, Russian": functools.partial(texts.catalogue, "ru"),
        "docstrings, English": texts.docstrings,
    },
}
PARALLEL: Final[dict[str, dict[str, Callable[[], list[Pair]]]]] = {
    "tune": {
        "captions, English to German": lambda: list(
            zip(texts.captions("en"), texts.captions("de"), strict=True)
        ),
        "program messages, English to French": functools.partial(texts.catalogue_pairs, "fr"),
    },
    "report": {
        "captions, German to English": lambda: list(
            zip(texts.captions("de"), texts.captions("en"), strict=True)
        ),
        "program messages, English to Spanish": functools.partial(texts.catalogue_pairs, "es"),
    },
}
FOREIGN: Final = {"tune": texts.TUNE_FOREIGN, "report": texts.REPORT_FOREIGN}
ACCEPTED: Final = {
    "other language": {"foreign_language", "other_script"},
    "hex dump": {"garbled_text", "table", "code"},
    "characters repeated": {"repetition", "empty"},
    "CSV": {"table", "code"},
    "JSON": {"code", "markup"},
    "target in the source's language": {"foreign_language", "mismatched"},
    "a quarter of the target": {"truncated", "mismatched"},
    "a quarter of the source": {"truncated", "mismatched"},
}
"""Kinds that are also right, besides the one a fault was written for."""


def _short(text: str) -> str:
    return " ".join(text.split()[: max(len(text.split()) // 4, 1)])


PAIR_FAULTS: Final[dict[str, tuple[str, Callable[[Pair, Pair], Pair]]]] = {
    "target is the source": ("copied", lambda pair, _: (pair[0], pair[0])),
    "target is nearly the source": (
        "copied",
        lambda pair, _: (pair[0], pair[0].lower().rstrip(".") + " !"),
    ),
    "source is the target": ("copied", lambda pair, _: (pair[1], pair[1])),
    "sides swapped": ("swapped", lambda pair, _: (pair[1], pair[0])),
    "a quarter of the target": ("truncated", lambda pair, _: (pair[0], _short(pair[1]))),
    "a quarter of the source": ("truncated", lambda pair, _: (_short(pair[0]), pair[1])),
    "target in the source's language": (
        "foreign_language",
        lambda pair, other: (pair[0], other[0]),
    ),
    "target of another source": ("mismatched", lambda pair, other: (pair[0], other[1])),
}


def quality(half: str, seed: int) -> str:
    """Both tables of a half."""
    found: dict[str, dict[str, Counter[str]]] = {}
    lines = []
    for name, load in CORPORA[half].items():
        clean, kinds = _read_corpus(name, load(), half, seed, found)
        lines.append(f"{name}: {clean:.2%} of {NUM_CLEAN:,} clean texts flagged ({kinds})")
    for name, load_pairs in PARALLEL[half].items():
        clean, kinds = _read_parallel(name, load_pairs(), seed, found)
        lines.append(f"{name}: {clean:.2%} of {NUM_CLEAN:,} clean pairs flagged ({kinds})")
    return "\n\n".join(
        [
            f"### {half}, seed {seed}",
            _table(found),
            _table_of_kinds(found),
            "\n".join(f"- {line}" for line in lines),
        ]
    )


def _read_corpus(
    name: str, corpus: list[str], half: str, seed: int, found: dict[str, dict[str, Counter[str]]]
) -> tuple[float, str]:
    generator = random.Random(f"{name}-{seed}")
    clean = generator.sample(corpus, min(NUM_CLEAN, len(corpus)))
    faults = {**texts.FAULTS, "other language": ("foreign_language", texts.foreign(FOREIGN[half]))}
    planted = [
        (fault, kind, _spoilt(fault, plant, clean, generator))
        for fault, (kind, plant) in faults.items()
        for _ in range(NUM_PLANTED)
        if not (fault in texts.LATIN_ONLY and name.endswith("Russian"))
    ]
    bad = generator.sample([text for *_, text in planted], int(BAD_SHARE * PROFILE))
    profile = profile_of([*generator.sample(clean, min(PROFILE, len(clean) // 2)), *bad])
    for (fault, kind, _), signs in zip(
        planted, find_signs_of_all([text for *_, text in planted], profile), strict=True
    ):
        _count(found, name, fault, kind, signs)
    flagged = [
        signs[0].kind
        for signs in find_signs_of_all(clean, profile)
        if signs and signs[0].strength >= CLEAR
    ]
    return len(flagged) / len(clean), _listed(flagged)


def _spoilt(fault: str, plant: texts.Plant, clean: Sequence[str], generator: random.Random) -> str:
    if fault == "many texts in one":
        return " ".join(generator.choices(clean, k=120))
    return plant(generator.choice(clean), generator)


def _read_parallel(
    name: str, corpus: list[Pair], seed: int, found: dict[str, dict[str, Counter[str]]]
) -> tuple[float, str]:
    generator = random.Random(f"{name}-{seed}")
    clean = generator.sample(corpus, NUM_CLEAN)
    planted = [
        (fault, kind, spoil(generator.choice(clean), generator.choice(clean)))
        for fault, (kind, spoil) in PAIR_FAULTS.items()
        for _ in range(2 * NUM_PLANTED)
    ]
    bad = generator.sample([pair for *_, pair in planted], int(BAD_SHARE * PROFILE))
    sample = [*generator.sample(clean, PROFILE), *bad]
    profile = pair_profile_of([pair[0] for pair in sample], [pair[1] for pair in sample])

    def read(pairs: Iterable[Pair]) -> list[list[Sign]]:
        sources, targets = zip(*pairs, strict=True)
        readings = find_signs_of_pairs(sources, targets, profile)
        return [
            sorted(
                (*reading.pair, *reading.source, *reading.target), key=lambda sign: -sign.strength
            )
            for reading in readings
        ]

    for (fault, kind, _), signs in zip(planted, read(pair for *_, pair in planted), strict=True):
        _count(found, name, fault, kind, signs)
    flagged = [signs[0].kind for signs in read(clean) if signs and signs[0].strength >= CLEAR]
    return len(flagged) / len(clean), _listed(flagged)


def _count(
    found: dict[str, dict[str, Counter[str]]],
    name: str,
    fault: str,
    kind: str,
    signs: Sequence[Sign],
) -> None:
    counts = found.setdefault(name, {}).setdefault(fault, Counter())
    counts["all"] += 1
    if signs and signs[0].strength >= CLEAR:
        counts["found"] += 1
        counts["named"] += signs[0].kind in ACCEPTED.get(fault, {kind})


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join(f"{num} {kind}" for kind, num in Counter(kinds).most_common(4)) or "none"


def _table(found: dict[str, dict[str, Counter[str]]]) -> str:
    rows = []
    for name, faults in found.items():
        total: Counter[str] = sum(faults.values(), Counter())
        rows.append(
            (
                name,
                total["all"],
                f"{total['found'] / total['all']:.1%}",
                f"{total['named'] / total['all']:.1%}",
            )
        )
    return markdown_table(("corpus", "bad rows", "found", "named right"), rows)


def _table_of_kinds(found: dict[str, dict[str, Counter[str]]]) -> str:
    rows = []
    for fault in dict.fromkeys(fault for faults in found.values() for fault in faults):
        total: Counter[str] = sum(
            (faults[fault] for faults in found.values() if fault in faults), Counter()
        )
        rows.append(
            (
                fault,
                total["all"],
                f"{total['found'] / total['all']:.0%}",
                f"{total['named'] / total['all']:.0%}",
            )
        )
    return markdown_table(("fault", "rows", "found", "named right"), rows)


def peers(lines: Sequence[str]) -> dict[str, Callable[[], object]]:
    """What others offer for the same signs, where installed: datatrove's filters of quality and
    repetition, MinHash of datasketch and of rensa.
    """
    found: dict[str, Callable[[], object]] = {}
    if find_spec("datatrove"):
        data = import_module("datatrove.data")
        filters = import_module("datatrove.pipeline.filters")
        chosen = [
            filters.GopherRepetitionFilter(),
            filters.GopherQualityFilter(),
            filters.FineWebQualityFilter(),
            filters.C4QualityFilter(),
        ]

        def filtered() -> None:
            for number, line in enumerate(lines):
                document = data.Document(text=line, id=str(number))
                for part in chosen:
                    part.filter(document)

        found["datatrove: Gopher repetition and quality, FineWeb, C4"] = filtered
    if find_spec("datasketch"):
        make = import_module("datasketch").MinHash
        found["datasketch: MinHash"] = lambda: [
            make.bulk([[run.encode() for run in _runs(line)]], num_perm=64) for line in lines
        ]
    if find_spec("rensa"):
        rensa = import_module("rensa")

        def hashed() -> None:
            for line in lines:
                minhash = rensa.RMinHash(num_perm=64, seed=1)
                minhash.update(_runs(line))
                minhash.digest()

        found["rensa: MinHash"] = hashed
    return found


def _runs(line: str) -> list[str]:
    words = line.lower().split()
    return [" ".join(words[start : start + 3]) for start in range(max(len(words) - 2, 1))]


def speed() -> str:
    """Megabytes a second of one core."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (
            ("manual pages, English", texts.manual_pages(sections=8)),
            ("captions, English", texts.captions("en")),
        ):
            path = Path(folder) / "corpus.txt"
            path.write_text("\n".join(line.replace("\n", " ") for line in lines) + "\n")
            megabytes = path.stat().st_size / 1e6
            corpus = open_corpus([path])
            contenders: dict[str, Callable[[], object]] = {
                "audit": functools.partial(audit, corpus, AuditSettings(near_duplicates=False)),
                "audit, near-duplicates too": functools.partial(audit, corpus, AuditSettings()),
                "its signs of a text alone": functools.partial(
                    find_signs_of_all, lines, profile_of(lines[:PROFILE])
                ),
                "its MinHash alone": functools.partial(fingerprints_of, lines),
            }
            speeds = {
                told: megabytes / cost
                for told, cost in best_cpu_seconds(contenders, num_turns=3).items()
            }
            few = lines[:NUM_FOR_PEERS]
            for told, seconds in best_cpu_seconds(peers(few), num_turns=2).items():
                speeds[told] = sum(len(line.encode()) for line in few) / 1e6 / seconds
            for told, speed in speeds.items():
                if told == "audit":
                    compared = f"≥ {GATE}: {'met' if speed >= GATE else 'missed'}"
                else:
                    ours = speeds["its MinHash alone" if "MinHash" in told else "audit"]
                    compared = f"{ours / speed:.1f}x"
                rows.append((name, f"{megabytes:.1f}", told, f"{speed:.2f}", compared))
    return "\n\n".join(
        [
            "### Speed, one core, profile and reading included",
            markdown_table(
                ("corpus", "MB", "", "MB/s", "gate, or audit (MinHash: its own) beside it"), rows
            ),
        ]
    )


def main() -> None:
    half = sys.argv[1] if len(sys.argv) > 1 else "report"
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else REPORTED_SEED
    if half != "speed":
        print(quality(half, seed))
        print()
    if half != "tune":
        print(speed())


REPORTED_SEED: Final = 103
"""The seed of the half `report` in RESULTS.md, where its earlier runs are told too."""

if __name__ == "__main__":
    main()
