"""Do the targets of a batch belong to their sources? Each is tried after other sources, beside pairs of other batches.

What a source *helps* is the loss of its target after other sources minus that after its own. Of a good pair it is plainly above 0, once a model has
learnt to look at the source; of one that does not belong together it is about 0. So it is of noise: only a target that is as likely as others are
after sources that are not theirs can belong elsewhere. Where another target of the batch is helped by a source as good pairs
are, and more than by the source it stands beside, the two were mixed up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from sonde.forensics.laboratory import Laboratory, rows_like
from sonde.forensics.seams import Corpus, Name, Row
from sonde.spread import Spread

_SHIFTS: Final = (1, 2, 3)
"""Sources of so many rows further on are tried."""
_NUM_OTHERS: Final = 128
"""Pairs of such lengths that show what is usual."""
_MAX_ROWS: Final = 64
_MAX_TRIED: Final = 6
"""Sources that are tried with every target of the batch."""
_LEARNT: Final = 2.0
"""A model looks at sources when the help that they usually give is so many deviations above none."""
_ODD: Final = 2.5
"""A target so many deviations less likely than others, after sources that are not its own, is odd by itself."""
_BELONGS: Final = 0.5
"""A source belongs to a target that it helps by this part of what is usual."""
_OF_HELP: Final = 0.35
"""It helps still when it takes this part of what is usual off the loss."""
_UNSEEN: Final = 0.3
"""What was never seen counts as seen so often."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PairTest:
    """How much sources help."""

    helps: Mapping[Name, float]
    """What the own source of each row helps."""
    usual: Spread
    """What is usual in other batches."""
    odd: frozenset[Name]
    """Rows whose targets are unlikely whatever the source."""
    mixed: Mapping[Name, str]
    """Rows whose source belongs to another target of the batch, with words."""
    expected: float
    """So many rows of such a batch have a source that does not help by nature: names, headings, free translations."""

    @property
    def is_telling(self) -> bool:
        """Does the model look at the source at all?"""
        return len(self.usual) >= 8 and self.usual.median > _LEARNT * self.usual.deviation

    def is_unhelped(self, name: Name) -> bool:
        """Does a row's source help far less than usual, though its target is as likely as others after any source?"""
        return name in self.helps and name not in self.odd and _is_unhelped(self.helps[name], self.usual)


def _is_unhelped(helps: float, usual: Spread) -> bool:
    return helps < _OF_HELP * usual.median and usual.z(helps) < -_LEARNT


def compare_pairs(lab: Laboratory, corpus: Corpus, rows: Sequence[Row]) -> PairTest | None:
    """Try the sources of a batch's rows; None when no batch can be made of them."""
    rows = [row for row in rows if row.source is not None][:_MAX_ROWS]
    like = rows_like(rows, corpus, {row.name for row in rows}, _NUM_OTHERS)
    others = [like[start : start + max(len(rows), 8)] for start in range(0, len(like), max(len(rows), 8))]
    if len(rows) < 2 or not others or corpus.batch(rows[:1]) is None:
        return None
    helps, after = _helps(lab, corpus, rows)
    of_others = [_helps(lab, corpus, other) for other in others if len(other) > 1]
    usual = Spread([value for one, _ in of_others for value in one.values()])
    usual_after = Spread([value for _, one in of_others for value in one.values()])
    odd = frozenset(name for name, loss in after.items() if usual_after.z(loss) > _ODD)
    by_nature = sum(
        _is_unhelped(value, usual) and usual_after.z(losses[name]) <= _ODD
        for values, losses in of_others
        for name, value in values.items()
    )
    expected = len(helps) * (by_nature + _UNSEEN) / (len(usual) + 1)
    test = PairTest(helps=helps, usual=usual, odd=odd, mixed={}, expected=expected)
    unhelped = sorted((row for row in rows if test.is_unhelped(row.name)), key=lambda row: helps[row.name])
    if test.is_telling and len(unhelped) > 1:  # a source belongs to a target that its own does not help
        test = replace(test, mixed=_mixed(lab, corpus, unhelped, unhelped[:_MAX_TRIED], usual.median))
    lab.note(
        "do the targets belong to their sources?",
        f"the targets of {len(rows)} samples after their own sources and after others",
        f"{len(unhelped)} are hardly likelier after their own; {len(test.mixed)} sources fit the target of another sample. "
        f"Usually the own source takes {usual.median:.2g} (±{usual.deviation:.2g}) off the loss, and {expected:.2g} of {len(helps)} rows are so by nature",
        unhelped=float(len(unhelped)),
        mixed=float(len(test.mixed)),
        usual=usual.median,
    )
    return test


def _helps(lab: Laboratory, corpus: Corpus, rows: Sequence[Row]) -> tuple[dict[Name, float], dict[Name, float]]:
    """What the source of each row helps, and the loss of its target after others; without rows that find no other source."""
    own = _losses(lab, corpus, rows)
    found: list[list[float]] = [[] for _ in rows]
    for shift in _SHIFTS:
        moved = [rows[(place + shift) % len(rows)] for place in range(len(rows))]
        tried = [Row(row.name, row.target, other.source) for row, other in zip(rows, moved, strict=True)]
        for place, loss in enumerate(_losses(lab, corpus, tried)):
            found[place] += [loss] if moved[place].source != rows[place].source else []
    after = {row.name: sum(losses) / len(losses) for row, losses in zip(rows, found, strict=True) if losses}
    return {row.name: after[row.name] - loss for row, loss in zip(rows, own, strict=True) if row.name in after}, after


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
