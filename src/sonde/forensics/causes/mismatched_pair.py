"""Targets that do not belong to their sources: lengths or numbers that do not fit, or sources that
do not help.

Each target is tried with other sources. How much a source *helps* is the loss of its target with
other sources minus the loss with its own. For a good pair this is clearly above 0 once the model
has learned to use the source; for a mismatched pair it is about 0. It is also about 0 for noise, so
only targets that are as likely as others with a wrong source can be mismatched. If a source helps
another target of the batch as much as in good pairs, and more than that target's own source does,
the two were mixed up.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sonde.data.skip_list import sample_name
from sonde.forensics.causes.cause_rule import LOOK_AT_SAMPLES, SKIP, CauseFinding, CauseRule
from sonde.forensics.causes.text_kind import chance, describe_suspects
from sonde.forensics.evidence import Evidence
from sonde.forensics.laboratory import Laboratory, rows_like
from sonde.forensics.samples_seen import SeenSample, rarity_of
from sonde.forensics.seams import Name, Row, RunTexts
from sonde.spread import Spread
from sonde.texts.pairs import MISMATCHED
from sonde.texts.signs import CLEAR

_LEAST_SCORE: Final = 0.1
"""A sample with a lower score is not a suspect."""
_LEAST_TAIL: Final = 0.0
"""A source that hardly helps is a mismatch only if the loss of its target is an outlier too."""
_MIXED: Final = 0.92
_TWO_MIXED: Final = 0.7
_UNHELPED: Final = 0.88
"""The maximum scores of samples whose source fits another target (if there are only two, they may
be similar sentences), and of those whose source does not help.
"""
_EVEN: Final = 2.5
"""At this rarity (a power of ten), the number of unhelpful sources is as likely chance as not."""

_SHIFTS: Final = (1, 2, 3)
"""Try the sources this many rows further on."""
_NUM_OTHERS: Final = 128
"""How many other pairs of similar length to measure, to learn what is usual."""
_MAX_ROWS: Final = 64
_MAX_TRIED: Final = 6
"""The number of sources that are tried with every target of the batch."""
_LEARNT: Final = 2.0
"""The model uses the source if the usual help is this many deviations above 0."""
_ODD: Final = 2.5
"""A target is odd by itself if it is this many deviations less likely than others with a wrong
source.
"""
_BELONGS: Final = 0.5
"""A source belongs to a target if it helps by at least this fraction of the usual."""
_OF_HELP: Final = 0.35
"""A source still helps if it reduces the loss by this fraction of the usual."""
_UNSEEN: Final = 0.3
"""The count assumed for what was never seen."""


class _Mismatch(NamedTuple):
    """A sample whose sides may not belong together."""

    score: float
    seen: SeenSample
    sentences: tuple[str, ...]
    """Why they may not."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge which samples have sides that do not fit, by their text or by the model's losses."""
    found = [mismatch for mismatch in _mismatches(evidence) if mismatch.score > _LEAST_SCORE]
    if not found:
        return None
    best = max(found, key=lambda mismatch: mismatch.score)
    suspects = list({mismatch.seen.row.name: mismatch.seen for mismatch in found}.values())
    score = best.score * evidence.data_weight
    sentences = [describe_suspects(evidence, suspects), *best.sentences]
    if evidence.case.is_loss_unusual:
        part = evidence.part_of(suspects)
        them = "it" if len(suspects) == 1 else "them"
        sentences.append(f"without {them} {part:.0%} of the loss above normal is gone")
        score *= 0.4 + 0.6 * part
    return CauseFinding(score=score, evidence=sentences, suspects=evidence.suspects(suspects))


def _mismatches(evidence: Evidence) -> Iterator[_Mismatch]:
    """Yield what speaks against each sample: its text, and the losses with other sources."""
    test = evidence.once("pairs", lambda: compare_pairs(evidence))
    num_unhelped = sum(_is_outlier_unhelped(test, sample) for sample in evidence.samples)
    for seen in evidence.samples:
        first = seen.signs[0] if seen.signs else None
        if first is not None and first.kind == MISMATCHED:
            yield _Mismatch(chance(evidence, first, seen), seen, first.evidence)
        has_clear_sign = first is not None and first.strength >= CLEAR
        if test is not None and test.is_telling and not has_clear_sign:
            yield from _by_losses(test, seen, num_unhelped)


def _is_outlier_unhelped(test: "PairTest | None", seen: SeenSample) -> bool:
    """Return whether the source of a sample does not help, and its loss is an outlier."""
    return test is not None and test.is_unhelped(seen.row.name) and seen.tail > _LEAST_TAIL


def _by_losses(test: "PairTest", seen: SeenSample, num_unhelped: int) -> Iterator[_Mismatch]:
    """Yield what the losses with other sources say against a sample, if they do."""
    name = seen.row.name
    num_mixed = len(test.mixed)
    if name in test.mixed and seen.z > 0 and num_mixed > 1:
        yield _Mismatch(_MIXED if num_mixed > 2 else _TWO_MIXED, seen, (test.mixed[name],))
    elif _is_outlier_unhelped(test, seen):
        sentence = (
            f"its own source takes {test.helps[name]:.2g} off the loss of its target, usually"
            f" {test.usual.median:.2g}"
        )
        score = _of_unhelped(num_unhelped, test.expected, seen.tail)
        yield _Mismatch(score, seen, (sentence,))


def _of_unhelped(num: int, expected: float, tail: float) -> float:
    """Return the score of a source that does not help: higher if that is rare in the corpus and
    frequent in this batch.
    """
    rarity = rarity_of(num, expected) + 0.5 * min(tail, 2.0)
    return _UNHELPED / (1 + math.exp(1.5 * (_EVEN - rarity)))


class PairTest(NamedTuple):
    """How much the sources of a batch help."""

    helps: Mapping[Name, float]
    """How much each row's own source helps."""
    usual: Spread
    """How much sources usually help in other batches."""
    odd: frozenset[Name]
    """Rows whose targets are unlikely with any source."""
    mixed: Mapping[Name, str]
    """Rows whose source belongs to another target of the batch, with a description."""
    expected: float
    """The number of rows in such a batch whose source naturally does not help: names, headings,
    free translations.
    """

    @property
    def is_telling(self) -> bool:
        """Whether the model uses the source at all."""
        return len(self.usual) >= 8 and self.usual.median > _LEARNT * self.usual.deviation

    def is_unhelped(self, name: Name) -> bool:
        """Return whether a row's source helps far less than usual although its target is not odd by
        itself.
        """
        return (
            name in self.helps
            and name not in self.odd
            and _is_unhelped(self.helps[name], self.usual)
        )


def _is_unhelped(helps: float, usual: Spread) -> bool:
    return helps < _OF_HELP * usual.median and usual.z(helps) < -_LEARNT


def compare_pairs(evidence: Evidence) -> PairTest | None:
    """Try the sources of the step's rows; None if no batch can be built from them."""
    lab = evidence.lab
    corpus = evidence.corpus
    rows = [sample.row for sample in evidence.samples if sample.row.source is not None][:_MAX_ROWS]
    if corpus is None or len(rows) < 2 or corpus.batch(rows[:1]) is None:
        return None
    like = rows_like(rows, corpus, {row.name for row in rows}, _NUM_OTHERS)
    if not like:
        return None
    size = max(len(rows), 8)
    others = [like[start : start + size] for start in range(0, len(like), size)]
    own = _helps(lab, corpus, rows)
    test = _test_of(own, [_helps(lab, corpus, other) for other in others if len(other) > 1])
    unhelped = [row for row in rows if test.is_unhelped(row.name)]
    unhelped.sort(key=lambda row: test.helps[row.name])
    # a source can only belong to a target that its own source does not help
    if test.is_telling and len(unhelped) > 1:
        tried = unhelped[:_MAX_TRIED]
        test = test._replace(mixed=sources_mixed(lab, corpus, unhelped, tried, test.usual.median))
    lab.note(
        "do the targets belong to their sources?",
        f"the targets of {len(rows)} samples after their own sources and after others",
        f"{len(unhelped)} are hardly likelier after their own; {len(test.mixed)} sources fit the"
        f" target of another sample. Usually the own source takes {test.usual.median:.2g}"
        f" (±{test.usual.deviation:.2g}) off the loss, and {test.expected:.2g} of"
        f" {len(test.helps)} rows are so by nature",
        unhelped=float(len(unhelped)),
        mixed=float(len(test.mixed)),
        usual=test.usual.median,
    )
    return test


class _Help(NamedTuple):
    """What the sources of a batch do, for rows that have another source to try."""

    helps: dict[Name, float]
    """How much each row's own source helps."""
    after: dict[Name, float]
    """The loss of each target with other sources."""


def _test_of(own: _Help, of_others: Sequence[_Help]) -> PairTest:
    """Compare a batch with others. Nothing is tried here, so nothing is mixed up yet."""
    usual_helps: list[float] = []
    usual_losses: list[float] = []
    for other in of_others:
        usual_helps += other.helps.values()
        usual_losses += other.after.values()
    usual = Spread(usual_helps)
    usual_after = Spread(usual_losses)
    odd = frozenset(name for name, loss in own.after.items() if usual_after.z(loss) > _ODD)
    num_by_nature = 0
    for other in of_others:
        for name, helps in other.helps.items():
            if _is_unhelped(helps, usual) and usual_after.z(other.after[name]) <= _ODD:
                num_by_nature += 1
    expected = len(own.helps) * (num_by_nature + _UNSEEN) / (len(usual) + 1)
    return PairTest(helps=own.helps, usual=usual, odd=odd, mixed={}, expected=expected)


def _helps(lab: Laboratory, corpus: RunTexts, rows: Sequence[Row]) -> _Help:
    """Try the rows with their own sources and with those of other rows."""
    own = _losses(lab, corpus, rows)
    found: list[list[float]] = [[] for _ in rows]
    for shift in _SHIFTS:
        moved = [rows[(place + shift) % len(rows)] for place in range(len(rows))]
        tried = [
            Row(row.name, row.target, other.source) for row, other in zip(rows, moved, strict=True)
        ]
        for place, loss in enumerate(_losses(lab, corpus, tried)):
            if moved[place].source != rows[place].source:
                found[place].append(loss)
    after = {
        row.name: sum(losses) / len(losses)
        for row, losses in zip(rows, found, strict=True)
        if losses
    }
    helps = {
        row.name: after[row.name] - loss
        for row, loss in zip(rows, own, strict=True)
        if row.name in after
    }
    return _Help(helps, after)


def sources_mixed(
    lab: Laboratory, corpus: RunTexts, rows: Sequence[Row], tried: Sequence[Row], usual: float
) -> dict[Name, str]:
    """Return what is said of each row that is tried whose source fits the target of another row:
    its loss falls there by a good part of the `usual` one.
    """
    own = _losses(lab, corpus, rows)
    found = {}
    for row in tried:
        after = _losses(lab, corpus, [Row(other.name, other.target, row.source) for other in rows])
        gains = [
            (before - now, other.name, now)
            for before, now, other in zip(own, after, rows, strict=True)
            if other.name != row.name
        ]
        gain, name, loss = max(gains)
        if gain > _BELONGS * usual:
            found[row.name] = (
                f"the source of sample {sample_name(*row.name)} fits the target of sample"
                f" {sample_name(*name)}: {loss:.2f} after it, {loss + gain:.2f} after its own"
            )
    return found


def _losses(lab: Laboratory, corpus: RunTexts, rows: Sequence[Row]) -> list[float]:
    samples = lab.replay.loss(batches=[corpus.batch(rows)]).samples
    return [float("nan") if sample.loss is None else sample.loss for sample in samples]


RULE: Final = CauseRule(
    title="The batch holds targets that do not belong to their sources.",
    advice=(SKIP, "Check how the two sides of the corpus were aligned around these lines."),
    blames="samples",
    family="pair",
    needs="pairs",
    judge=judge,
    in_doubt=(
        LOOK_AT_SAMPLES,
        "Check how the two sides of the corpus were aligned around these lines.",
    ),
)
