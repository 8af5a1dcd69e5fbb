"""Do the targets of a batch belong to their sources? Each is tried after other sources, beside pairs of other batches.

What a source *helps* is the loss of its target after other sources minus that after its own. Of a good pair it is plainly above 0, once a model has
learnt to look at the source; of one that does not belong together it is about 0. Where another target of the batch is helped by a source as good pairs
are, and more than by the source it stands beside, the two were mixed up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from sonde.forensics.laboratory import Laboratory
from sonde.forensics.seams import Corpus, Name, Row
from sonde.spread import Spread

_SHIFTS: Final = (1, 2, 3)
"""Sources of so many rows further on are tried."""
_NUM_OTHERS: Final = 4
"""Batches that show what is usual."""
_MAX_ROWS: Final = 64
_MAX_TRIED: Final = 6
"""Sources that are tried with every target of the batch."""
_LEARNT: Final = 2.0
"""A model looks at sources when the help that they usually give is so many deviations above none."""
_BELONGS: Final = 0.5
"""A source belongs to a target that it helps by this part of what is usual."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PairTest:
    """How much sources help."""

    helps: Mapping[Name, float]
    """What the own source of each row helps."""
    usual: Spread
    """What is usual in other batches."""
    mixed: Mapping[Name, str]
    """Rows whose source belongs to another target of the batch, with words."""

    @property
    def is_telling(self) -> bool:
        """Does the model look at the source at all?"""
        return len(self.usual) >= 8 and self.usual.median > _LEARNT * self.usual.deviation

    def z(self, name: Name) -> float:
        """How far the help of a row's source is above the usual; negative when it helps less."""
        return self.usual.z(self.helps[name]) if name in self.helps else 0.0


def compare_pairs(lab: Laboratory, corpus: Corpus, rows: Sequence[Row]) -> PairTest | None:
    """Try the sources of a batch's rows; None when no batch can be made of them."""
    rows = [row for row in rows if row.source is not None][:_MAX_ROWS]
    others = [
        [row for row in lab.rows_of(one) if row.name[1] >= 0][:_MAX_ROWS] for one in lab.other_batches()[:_NUM_OTHERS]
    ]
    if len(rows) < 2 or not others or corpus.batch(rows[:1]) is None:
        return None
    helps = _helps(lab, corpus, rows)
    usual = Spread([value for other in others if len(other) > 1 for value in _helps(lab, corpus, other).values()])
    test = PairTest(helps=helps, usual=usual, mixed={})
    unhelped = sorted((row for row in rows if test.z(row.name) < -_LEARNT), key=lambda row: helps[row.name])
    if test.is_telling and unhelped:
        mixed = _mixed(lab, corpus, rows, unhelped[:_MAX_TRIED], usual.median)
        test = PairTest(helps=helps, usual=usual, mixed=mixed)
    lab.note(
        "do the targets belong to their sources?",
        f"the targets of {len(rows)} samples after their own sources and after others",
        f"{len(unhelped)} are hardly likelier after their own; {len(test.mixed)} sources fit the target of another sample. "
        f"Usually the own source takes {usual.median:.2g} (±{usual.deviation:.2g}) off the loss",
        unhelped=float(len(unhelped)),
        mixed=float(len(test.mixed)),
        usual=usual.median,
    )
    return test


def _helps(lab: Laboratory, corpus: Corpus, rows: Sequence[Row]) -> dict[Name, float]:
    own = _losses(lab, corpus, rows)
    total = [0.0] * len(rows)
    shifts = [shift for shift in _SHIFTS if shift < len(rows)]
    for shift in shifts:
        moved = [*rows[shift:], *rows[:shift]]
        tried = [Row(row.name, row.target, other.source) for row, other in zip(rows, moved, strict=True)]
        total = [one + loss for one, loss in zip(total, _losses(lab, corpus, tried), strict=True)]
    return {row.name: one / len(shifts) - loss for row, one, loss in zip(rows, total, own, strict=True)}


def _mixed(lab: Laboratory, corpus: Corpus, rows: Sequence[Row], tried: Sequence[Row], usual: float) -> dict[Name, str]:
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
                f"the source of sample {row.name[1]} fits the target of sample {name[1]}: {loss:.2f} after it, {loss + gain:.2f} after its own"
            )
    return found


def _losses(lab: Laboratory, corpus: Corpus, rows: Sequence[Row]) -> list[float]:
    samples = lab.replay.loss(batches=[corpus.batch(rows)]).samples
    return [float("nan") if one.loss is None else one.loss for one in samples]
