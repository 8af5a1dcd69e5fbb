"""The batch is to blame: which of its samples, and what is wrong with them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from sonde.forensics.cause_texts import make_cause
from sonde.forensics.laboratory import Laboratory, StateTest
from sonde.forensics.losses import SampleLoss
from sonde.forensics.pair_test import test_pairs
from sonde.forensics.sample_test import SuspectRow, explained, suspect_rows
from sonde.forensics.sample_texts import SampleTexts
from sonde.forensics.seams import Row
from sonde.forensics.verdict import (
    DUPLICATED_TEXT,
    HARD_SAMPLE,
    MISMATCHED_PAIR,
    REPETITION,
    Cause,
    Suspect,
)
from sonde.spread import Spread
from sonde.texts.duplicates import Repeats, repeats_within
from sonde.texts.text_signs import Reading, repeated_share

_MAX_READ: Final = 8
_DUPLICATED: Final = 0.4
"""A batch is full of duplicates when this part of its samples are some,"""
_CALM_Z: Final = 2.0
_CLEAR_Z: Final = 4.0
_LESS_PLAIN: Final = 0.75
_PLAIN: Final = 0.9
"""A reading this strong is plain to see."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Blamed:
    """Samples that explain the loss, and how much of it."""

    rows: tuple[SuspectRow, ...]
    part: float
    """Of the excess that is gone without them."""
    texts: SampleTexts | None


def judge_samples(lab: Laboratory, state: StateTest) -> list[Cause]:
    """The causes that lie in the samples of the batch, if some of them are suspicious."""
    rows = suspect_rows(state.own, state.others)
    step = lab.case.step
    if not rows:
        return []
    names = [_name(one.sample) for one in rows]
    without = lab.without(names)
    normal = state.here.median
    part = explained(state.own.loss, without, normal + state.here.deviation)
    worst = rows[0]
    alone = lab.without(names[:1]) if len(rows) > 1 else without
    lab.note(
        "which samples?",
        f"step {step} without its {len(rows)} samples that lose most, and without the worst alone",
        f"the loss is {without:.4g} instead of {state.own.loss:.4g}, and {alone:.4g} without {names[0]} alone; {normal:.4g} is normal",
        without=without,
        without_worst=alone,
        own=state.own.loss,
    )
    blamed = _Blamed(rows=tuple(rows), part=part, texts=texts_of(lab))
    found = _kinds(lab, state, blamed)
    told = _told(worst, state, part, len(rows))
    hard = make_cause(
        HARD_SAMPLE,
        (0.55 if not found else 0.25) * part,
        told,
        step=step,
        suspects=_suspects(lab, blamed, [one.row for one in rows]),
    )
    return [*found, hard]


def judge_calm_samples(lab: Laboratory, state: StateTest) -> list[Cause]:
    """The loss of the batch is calm: is there still a sample in it that loses far more than others, and plainly is no such text?"""
    texts, found = texts_of(lab), []
    for row in suspect_rows(state.own, state.others, least_z=_CALM_Z)[:_MAX_READ] if texts is not None else ():
        assert texts is not None
        reading = texts.read(row.sample)
        if reading.is_alien and reading.strength >= (_PLAIN if row.z < _CLEAR_Z else _LESS_PLAIN):
            found.append((reading, row))
    if texts is None or not found:
        return []
    best = max(found, key=lambda one: one[0].strength)[0]
    rows = [row for reading, row in found if reading.cause == best.cause]
    told = (
        f"{len(rows)} of {len(state.own.samples)} samples lose far more than others, up to {rows[0].z:.0f} deviations"
    )
    suspects = [texts.as_suspect(row.sample, rank_of(lab, row.row)) for row in rows]
    evidence = [told, "the loss of the whole batch is hardly higher for it", *best.evidence]
    return [make_cause(best.cause, 0.75 * best.strength, evidence, step=lab.case.step, suspects=suspects)]


def judge_texts(lab: Laboratory) -> list[Cause]:
    """What can be seen of a batch without its losses: text many times over, or repeating itself. Only what is plain to see."""
    texts = texts_of(lab)
    if texts is None:
        return []
    losses = _real(lab.replay.loss().samples)
    found = [_duplicated(lab, texts, losses)]
    rows = [texts.row(one).target for one in losses]
    shares = [repeated_share(row)[0] for row in rows]
    usual = [repeated_share(row.target)[0] for one in lab.other_rows() for row in one]
    worst = max(range(len(rows)), key=shares.__getitem__, default=None)
    if worst is not None and shares[worst] > 0.8 and shares[worst] > 1.5 * max(usual, default=0.0):
        told = f"{shares[worst]:.0%} of sample {losses[worst].sample_id[1]} repeats itself, of others at most {max(usual):.0%}"
        suspect = texts.as_suspect(losses[worst], rank_of(lab, worst))
        found.append(make_cause(REPETITION, 0.7, [told], step=lab.case.step, suspects=[suspect]))
    return [one for one in found if one is not None]


def texts_of(lab: Laboratory) -> SampleTexts | None:
    """The texts of the training data; None when it is no data of sonde's own."""
    corpus = lab.replay.seams.batches.corpus
    return None if corpus is None else SampleTexts(corpus, lab.rows())


def rank_of(lab: Laboratory, row: int) -> int:
    """The rank that a row of the step belonged to."""
    world = lab.case.manifest.world_size
    for number, batch in enumerate(lab.replay.batches(lab.case.step)):
        size = len(lab.replay.seams.batches.rows(batch))
        if row < size:
            return number % world
        row -= size
    return 0


def _kinds(lab: Laboratory, state: StateTest, blamed: _Blamed) -> list[Cause]:
    """What is wrong with the samples: the kinds that were read in their texts, strongest first."""
    texts, step = blamed.texts, lab.case.step
    if texts is None:
        return []
    read = [(row, texts.read(row.sample)) for row in blamed.rows[:_MAX_READ]]
    found: list[Cause] = []
    votes: dict[str, float] = {}
    for row, reading in read:
        if reading.cause:
            votes[reading.cause] = votes.get(reading.cause, 0.0) + _finite_excess(row) * reading.strength
    total = sum(_finite_excess(row) for row, _ in read)
    for cause, vote in sorted(votes.items(), key=lambda item: -item[1])[:2]:
        of_kind = [(row, reading) for row, reading in read if reading.cause == cause]
        strength = vote / total
        best: Reading = max((reading for _, reading in of_kind), key=lambda one: one.strength)
        evidence = [*_told(of_kind[0][0], state, blamed.part, len(blamed.rows)), *best.evidence]
        suspects = _suspects(lab, blamed, [row.row for row, _ in of_kind])
        found.append(make_cause(cause, blamed.part * (0.35 + 0.6 * strength), evidence, step=step, suspects=suspects))
    found += _alternatives(found, [reading for _, reading in read], step)
    duplicated = _duplicated(lab, texts, _real(state.own.samples))
    if duplicated is not None:
        found.append(duplicated)
    mismatched = _mismatched(lab, state, blamed, sum(votes.values()) / total)
    if mismatched is not None and duplicated is not None:
        # Among copies every target fits some other source: that proves nothing.
        mismatched = replace(mismatched, confidence=round(0.5 * duplicated.confidence, 2))
    if mismatched is not None:
        found.append(mismatched)
    return found


def _duplicated(lab: Laboratory, texts: SampleTexts, samples: Sequence[SampleLoss]) -> Cause | None:
    """Is the batch full of the same text?"""
    rows = [_whole(texts.row(one)) for one in samples]
    here = repeats_within(rows)
    usual = max((one.share for one in _other_repeats(lab)), default=0.0)
    if here.share < _DUPLICATED or here.share < 2 * usual + 0.2:
        return None
    times = texts.corpus.occurrences(texts.row(samples[here.rows[0]]).target)
    evidence = [
        f"{len(here.rows)} of its {len(rows)} samples say mostly the same; in other batches at most {usual:.0%} do",
        f"what sample {samples[here.rows[0]].sample_id[1]} says stands {times or 0} times in the corpus",
    ]
    suspects = [texts.as_suspect(samples[row], rank_of(lab, row)) for row in here.rows[:_MAX_READ]]
    confidence = 0.6 + 0.35 * min(1.0, (here.share - usual - 0.2) / 0.6)
    return make_cause(DUPLICATED_TEXT, confidence, evidence, step=lab.case.step, suspects=suspects)


def _mismatched(lab: Laboratory, state: StateTest, blamed: _Blamed, oddity: float) -> Cause | None:
    """Do the targets belong to their sources?"""
    if blamed.texts is None:
        return None
    usual = Spread([one.loss for other in state.others for one in other.samples if one.loss is not None])
    test = test_pairs(lab.replay, blamed.texts, blamed.rows, list(lab.rows().values()), usual)
    if test is None:
        return None
    lab.note(
        "do the labels match?",
        f"the sources of {test.num_tried} suspects with every target of the batch",
        f"{test.num_swapped} fit another target better than their own; of {test.num_unhelped} the source does not help",
        swapped=float(test.num_swapped),
        unhelped=float(test.num_unhelped),
    )
    swapped, unhelped = test.num_swapped / test.num_tried, test.num_unhelped / test.num_tried
    if swapped < 0.3 and unhelped < 0.5:
        return None
    evidence = [*_told(blamed.rows[0], state, blamed.part, len(blamed.rows))]
    if test.num_swapped:
        evidence.append(
            f"{test.num_swapped} of {test.num_tried} suspects fit the target of another sample: {test.example}"
        )
    if test.num_unhelped:
        evidence.append(f"the targets of {test.num_unhelped} are no likelier after their own sources than after others")
    confidence = blamed.part * (0.95 if swapped >= 0.3 else 0.75 * (1 - oddity))
    suspects = _suspects(lab, blamed, [one.row for one in blamed.rows])
    return make_cause(MISMATCHED_PAIR, confidence, evidence, step=lab.case.step, suspects=suspects)


def _told(worst: SuspectRow, state: StateTest, part: float, num: int) -> list[str]:
    loss = "not finite" if worst.sample.loss is None else f"{worst.sample.loss:.3g}"
    verb, pronoun = ("loses", "it") if num == 1 else ("lose", "them")
    told = [
        f"{num} of {len(state.own.samples)} samples {verb} far more than samples of other batches: the worst {loss}, {worst.z:.0f} deviations above",
        f"without {pronoun} {part:.0%} of the loss above normal is gone",
    ]
    if state.earlier is not None and len(state.earlier_others):
        z = state.earlier_others.z(state.earlier_own)
        if z > 3:
            told.append(
                f"the batch is as unusual at the weights after update {state.earlier}: {z:.0f} deviations above others"
            )
    return told


def _suspects(lab: Laboratory, blamed: _Blamed, rows: Sequence[int]) -> list[Suspect]:
    wanted = [one for one in blamed.rows if one.row in set(rows)][:_MAX_READ]
    if blamed.texts is not None:
        return [blamed.texts.as_suspect(one.sample, rank_of(lab, one.row)) for one in wanted]
    named = [(one, _name(one.sample)) for one in wanted]
    return [
        Suspect(dataset=name[0], sample=name[1], rank=rank_of(lab, one.row), loss=one.sample.loss)
        for one, name in named
    ]


def _alternatives(found: Sequence[Cause], readings: Sequence[Reading], step: int) -> list[Cause]:
    """What the texts may be instead, where their readings leave doubt."""
    named = {one.cause for one in found}
    doubted = {reading.otherwise for reading in readings if reading.otherwise} - named
    return [
        make_cause(
            other,
            0.5 * found[0].confidence,
            [*found[0].evidence, "one is hard to tell from the other here"],
            step=step,
            suspects=found[0].suspects,
        )
        for other in sorted(doubted)
        if found
    ]


def _finite_excess(row: SuspectRow) -> float:
    """What a row weighs when the suspects are asked what they are."""
    return max(row.excess, 1e-9) if math.isfinite(row.excess) else 1.0


def _other_repeats(lab: Laboratory) -> list[Repeats]:
    return [repeats_within([_whole(row) for row in rows]) for rows in lab.other_rows()]


def _whole(row: Row) -> list[int]:
    return [*(row.source or ()), *row.target]


def _real(samples: Sequence[SampleLoss]) -> list[SampleLoss]:
    """Without the row of a rank that had no batch."""
    return [one for one in samples if int(one.sample_id[1]) >= 0]


def _name(sample: SampleLoss) -> tuple[str, int]:
    return str(sample.sample_id[0]), int(sample.sample_id[1])
