"""Audit a corpus: one pass over all texts before training, looking for the same signs that the
diagnosis uses.

    corpus ──a sample──> profile ─┐
       └──pieces──workers: signs, fingerprints──in order──> counts, the clearest of each kind,
           duplicates

Memory stays constant except for one bit per text (whether it is flagged). The result does not
depend on the number of workers.
"""

import functools
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sonde.data.text_blocks import OVER_LONG as OVER_LONG_LINE
from sonde.data.text_blocks import in_order
from sonde.errors import SettingError
from sonde.fields import Positive, check_fields
from sonde.texts import signs
from sonde.texts.corpora import Corpus, Piece, TextEntry, pieces_of, sample_of
from sonde.texts.fingerprints import (
    DUPLICATE,
    NEAR_DUPLICATE,
    DuplicateFinder,
    Fingerprints,
    Match,
    fingerprints_of,
)
from sonde.texts.pairs import PairProfile, find_signs_of_pairs, pair_profile_of
from sonde.texts.profile import CorpusProfile, profile_of
from sonde.texts.signs import CLEAR, Sign, find_signs_of_all

UNREADABLE: Final = "unreadable"
"""The kind of a record that lacks the text field it should have."""
_NUM_SAMPLED: Final = 4000
"""How many texts to sample to learn what is usual in the corpus."""
_NUM_LISTED: Final = 200
"""How many findings of each kind to keep with their text. All findings are counted."""
_MAX_SHOWN: Final = 300
_MAX_READ: Final = 20_000
_BROKEN_FILE: Final = 0.5
"""Reject a file as binary when more than this share of its lines is not UTF-8."""
_Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditSettings:
    """Settings of an audit."""

    least: _Share = CLEAR
    """Report only signs that are at least this strong."""
    near_duplicates: bool = True
    """Also look for near-duplicates."""
    similarity: _Share = 0.8
    """Two texts are near-duplicates when they share at least this fraction of their three-word
    shingles.
    """
    piece_bytes: Positive = 2 << 20
    """How many bytes of text a worker processes at once."""

    def __post_init__(self) -> None:
        check_fields(self)


class AuditFinding(NamedTuple):
    """A text of the corpus that was flagged."""

    strength: float
    """How clear the sign is, from 0 to 1."""
    kind: str
    """The kind of the text's strongest sign."""
    number: int
    """The place of the text in the corpus, from 0: its line number less 1, or its sample number in
    a data directory.
    """
    text: str
    """The beginning of the text, or of source and target for a pair."""
    evidence: tuple[str, ...]
    """Sentences that explain the finding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Audit:
    """The result of an audit."""

    corpus: Corpus
    """The corpus that was audited."""
    num_texts: int
    """The number of texts, or of pairs in a parallel corpus."""
    num_bytes: int
    """The size of the text in bytes."""
    counts: dict[str, int]
    """The number of flagged texts of each kind, most frequent first. A text counts once, under its
    strongest sign.
    """
    findings: tuple[AuditFinding, ...]
    """The strongest findings of each kind, most frequent kind first."""
    flagged: NDArray[np.int64] = field(repr=False)
    """The indices of all flagged texts, ascending."""
    samples: NDArray[np.int64] = field(repr=False)
    """The numbers of the flagged samples, as `sonde prepare` counts them. Texts that `sonde
    prepare` drops are left out.
    """
    languages: tuple[str, ...]
    """The main languages of the corpus."""


class _Found(NamedTuple):
    """What a worker found in one piece."""

    findings: list[AuditFinding]
    are_samples: NDArray[np.bool_]
    num_bytes: int
    num_file_bytes: int
    marks: Fingerprints


def audit(
    corpus: Corpus,
    settings: AuditSettings | None = None,
    *,
    executor: Executor | None = None,
    num_under_way: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
    on_finding: Callable[[AuditFinding], None] | None = None,
) -> Audit:
    """Audit a corpus in this process or with an executor. `on_progress` receives bytes done and
    total bytes, `on_finding` each finding.
    """
    settings = settings or AuditSettings()
    profile = _profile_of(corpus)
    work = functools.partial(_read, profile=profile, settings=settings)
    kept = _Kept(on_finding)
    num_texts = num_bytes = num_done = 0
    are_samples: list[NDArray[np.bool_]] = []
    with DuplicateFinder(least=settings.similarity) as finder:
        pieces = pieces_of(corpus, settings.piece_bytes)
        for found in in_order(executor, work, pieces, num_under_way=num_under_way):
            for finding in found.findings:
                kept.add(finding._replace(number=finding.number + num_texts))
            are_samples.append(found.are_samples)
            finder.add(found.marks)
            num_texts += len(found.are_samples)
            num_bytes += found.num_bytes
            num_done += found.num_file_bytes
            if on_progress:
                on_progress(num_done, corpus.num_bytes)
        repeats = [_of_match(match) for match in finder.matches()]
        for finding in sorted(repeats, key=lambda finding: finding.number):
            kept.add(finding)
    pieces = pieces_of(corpus, settings.piece_bytes)
    flagged = np.array(sorted(kept.numbers), np.int64)
    samples = flagged
    if len(flagged):
        is_sample = np.concatenate(are_samples)
        number_of_sample = np.cumsum(is_sample) - 1
        samples = number_of_sample[flagged[is_sample[flagged]]]
    own = profile.target if isinstance(profile, PairProfile) else profile
    return Audit(
        corpus=corpus,
        num_texts=num_texts,
        num_bytes=num_bytes,
        counts=dict(kept.counts.most_common()),
        findings=tuple(_with_texts(kept.ranked(), pieces, map(len, are_samples))),
        flagged=flagged,
        samples=samples,
        languages=own.languages,
    )


def _profile_of(corpus: Corpus) -> CorpusProfile | PairProfile:
    """Return what is usual in a corpus, learnt from a sample of it."""
    rows = sample_of(corpus, _NUM_SAMPLED)
    _check_decoded(corpus, rows)
    texts = [
        [text[:_MAX_READ] for text in row.texts]
        for row in rows
        if not row.fault and row.texts[0].strip()
    ]
    if rows and not texts and corpus.form == "jsonl":
        raise SettingError(
            f"{corpus.paths[0]} holds no text",
            cause=rows[0].fault,
            hint="--field names the field that does",
        )
    first_sides = [sides[0] for sides in texts]
    if corpus.is_parallel:
        return pair_profile_of(first_sides, [sides[1] for sides in texts])
    return profile_of(first_sides)


def _check_decoded(corpus: Corpus, rows: Sequence[TextEntry]) -> None:
    """Raise if most lines of a text file are not UTF-8."""
    if corpus.form != "text":
        return
    num_broken = sum(row.fault == "bad UTF-8" for row in rows)
    if num_broken > _BROKEN_FILE * len(rows):
        raise SettingError(
            f"{corpus.paths[0]} is no UTF-8 text",
            cause="most of its lines cannot be decoded",
            hint="convert it with `iconv`",
        )


def _read(piece: Piece, profile: CorpusProfile | PairProfile, settings: AuditSettings) -> _Found:
    """Return the findings, sizes and fingerprints of one piece."""
    rows = piece.read(slice(None))
    sides = (
        [[row.texts[side] for row in rows] for side in range(len(rows[0].texts))] if rows else [[]]
    )
    cut = [[text[:_MAX_READ] for text in side] for side in sides]
    if isinstance(profile, PairProfile):
        found = []
        for reading in find_signs_of_pairs(cut[0], cut[-1], profile):
            of_pair = [*reading.pair, *reading.source, *reading.target]
            found.append(sorted(of_pair, key=lambda sign: -sign.strength))
    else:
        found = find_signs_of_all(cut[0], profile)
    findings = [
        AuditFinding(sign.strength, sign.kind, number, _shown(row), sign.evidence)
        for number, (row, of_row) in enumerate(zip(rows, found, strict=True))
        if (sign := _clearest(row, of_row)) is not None and sign.strength >= settings.least
    ]
    together = sides[0] if len(sides) == 1 else ["\n".join(row.texts) for row in rows]
    return _Found(
        findings=findings,
        are_samples=np.array([row.is_sample for row in rows], bool),
        num_bytes=sum(row.num_bytes for row in rows),
        num_file_bytes=piece.num_file_bytes,
        marks=fingerprints_of(together, near=settings.near_duplicates),
    )


def _clearest(row: TextEntry, found: Sequence[Sign]) -> Sign | None:
    if row.fault == OVER_LONG_LINE:
        return Sign(signs.OVER_LONG, 1.0, (f"a line of {row.num_bytes:,} characters",))
    if row.fault and not found:
        return Sign(UNREADABLE, 1.0, (row.fault,))
    return found[0] if found else None


def _shown(row: TextEntry) -> str:
    return " → ".join(text[: _MAX_SHOWN // len(row.texts)] for text in row.texts)


def _of_match(match: Match) -> AuditFinding:
    kind = DUPLICATE if match.similarity == 1 else NEAR_DUPLICATE
    said = "the same as" if kind == DUPLICATE else f"{match.similarity:.0%} of it is also in"
    return AuditFinding(
        match.similarity, kind, match.text, "", (f"{said} text {match.earlier + 1:,}",)
    )


class _Kept:
    """Counts all findings and keeps the strongest of each kind."""

    def __init__(self, on_finding: Callable[[AuditFinding], None] | None) -> None:
        self.counts: Counter[str] = Counter()
        self.numbers: set[int] = set()
        self._on_finding = on_finding
        self._heaps: dict[str, list[tuple[float, int, AuditFinding]]] = {}

    def add(self, finding: AuditFinding) -> None:
        """Add a finding; later findings about the same text are ignored."""
        if finding.number in self.numbers:
            return
        self.numbers.add(finding.number)
        self.counts[finding.kind] += 1
        heap = self._heaps.setdefault(finding.kind, [])
        heapq.heappush(heap, (finding.strength, -finding.number, finding))
        if len(heap) > _NUM_LISTED:
            heapq.heappop(heap)
        if self._on_finding:
            self._on_finding(finding)

    def ranked(self) -> list[AuditFinding]:
        """Return the strongest findings of each kind, most frequent kind first."""
        ranked = []
        for kind, _ in self.counts.most_common():
            strongest = sorted(self._heaps[kind], reverse=True)
            ranked += [finding for _, _, finding in strongest]
        return ranked


def _with_texts(
    findings: Sequence[AuditFinding], pieces: Iterable[Piece], sizes: Iterable[int]
) -> Iterator[AuditFinding]:
    """Yield the findings with the texts of duplicates, which are read again. `sizes` are the
    numbers of rows in `pieces`.
    """
    texts: dict[int, str] = {}
    wanted = {finding.number for finding in findings if finding.kind in (DUPLICATE, NEAR_DUPLICATE)}
    start = 0
    for piece, size in zip(pieces, sizes, strict=False):
        here = [number - start for number in wanted if start <= number < start + size]
        if here:
            for number, row in zip(here, piece.read(here), strict=True):
                texts[start + number] = _shown(row)
        start += size
        if len(texts) == len(wanted):
            break
    for finding in findings:
        yield finding._replace(text=texts.get(finding.number, finding.text))
