"""The scene of an event: what happens between backward and the optimizer step when the loss has jumped.

    1. the step's forward again, without anything watching: the same loss, to the bit
    2. once more with the losses of single tokens recorded; the worst rows are read as text
    3. other batches of the ring at the same weights, as many as fit into `scene_seconds`

All ranks do the same, in the same order, and combine their results into the first verdict on the step.

Data or state? The step's batch and others were run at the state before the step. If only this batch has a high loss, it
is the data; if the others do too, higher than when they were trained on, it is the state. Replay and diagnosis can say
more later, from older states.
"""

import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from sonde import ranks
from sonde.flight.again import RowLosses, mean_loss, standing_still
from sonde.flight.batch_tree import token_rows
from sonde.flight.ring import Update
from sonde.flight.training import Training
from sonde.forensics.case import same_bits
from sonde.forensics.causes import rules
from sonde.forensics.causes.rule import Finding
from sonde.forensics.verdict import UNKNOWN, Cause, Experiment, Suspect
from sonde.spread import Spread
from sonde.texts.languages import identify
from sonde.texts.profile import profile_of
from sonde.texts.signs import Sign, read_texts

_NUM_ROWS: Final = 4
"""The number of rows per rank that are read as text."""
_NUM_TOKENS: Final = 8
_WINDOW: Final = 96
"""The number of tokens around the worst ones that are read as text."""
_MAX_TEXT: Final = 400
_NUM_TEXTS: Final = 96
"""The number of rows from other batches that define what is usual."""
_MIN_TEXTS: Final = 8

_RATE_RATIO: Final = 3.0
"""A learning rate that changes by more than this factor between updates has jumped."""
_STATE_SHARE: Final = 0.4
"""The state is to blame if other batches have risen by this fraction of the rise of this one."""

_Found: TypeAlias = tuple[tuple[str, int], float, list[int], tuple[tuple[str, float], ...]]
"""A row: its name, its loss, the tokens to read, and its worst tokens with their losses."""


class SuspectRow(NamedTuple):
    """One row of the step's batch, of any rank."""

    suspect: Suspect
    """The row as a suspect of a verdict, with the text around its worst tokens."""
    tokens: tuple[tuple[str, float], ...]
    """Its worst tokens with their losses."""
    sign: Sign
    """The clearest sign in its text; without a kind if there is none."""

    @property
    def loss(self) -> float:
        """The mean loss over its tokens."""
        return math.nan if self.suspect.loss is None else self.suspect.loss


class SceneFacts(NamedTuple):
    """What was found at the scene, over all ranks."""

    step: int
    own: float
    """The loss of the step's batch when run again."""
    is_exact: bool | None
    """Whether that is bit-identical to the loss of the step; None if it could not be run again."""
    normal: float
    """The expected loss."""
    others: Sequence[tuple[float, float]]
    """Other batches: their loss when they were trained on, and at the current state."""
    rows: Sequence[SuspectRow]
    """Rows of the step's batch, worst first."""
    row_losses: Sequence[float]
    """The losses of all rows."""
    rates: Sequence[tuple[int, float]]
    """The learning rates of the last updates, that of the step last."""


class Scene:
    """Investigates the events of one training."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.rows: list[RowLosses] = []
        """The rows of the step on this rank, if known."""
        self.names: list[tuple[str, int]] = []
        """The names of those rows."""

    def prepare(self) -> None:
        """Load slow dependencies in the background, so that an event can be investigated at once."""
        if self._training.decode is not None:
            threading.Thread(target=identify, args=("Some words.",), name="sonde-languages", daemon=True).start()

    def investigate(self, update: Update, ring: Sequence[Update], normal: float) -> SceneFacts:
        """Investigate an update. Every rank must call this."""
        self.rows, self.names = [], update.names()
        with standing_still(self._training.model, self._training.optimizer):
            own, seconds = self._own(update)
            others = self._others(update, ring, seconds)
        is_state = own is not None and is_state_bad(own, normal, list(others.values()))
        suspects = [] if is_state else self._read(ring, update)  # rows are read only if they may be to blame
        found = ranks.gather(
            {
                "own": own,
                "is_exact": own is not None and update.own_loss is not None and same_bits(own, update.own_loss),
                "others": others,
                "rows": msgspec.to_builtins(suspects),
                "losses": [one.mean for one in self.rows],
            }
        )
        return _merged(update, ring, normal, found)

    def read_rows(self, update: Update, ring: Sequence[Update], rows: Sequence[int]) -> list[SuspectRow]:
        """Read outlying rows of an update as text. Nothing is run again, and no other rank is involved."""
        names, losses = update.names(), [loss for one in update.micro if one.rows for loss in one.rows.losses.tolist()]
        tokens = [row for one in update.micro for row in token_rows(one.batch)]
        if len(tokens) != len(losses) or len(names) != len(losses):
            return []
        return self._suspects(
            ring, update, [(names[row], losses[row], tokens[row][:_WINDOW], ()) for row in rows[:_NUM_ROWS]]
        )

    def _own(self, update: Update) -> tuple[float | None, float]:
        """Return the loss of the update's own batches when run again, and the duration of one forward pass."""
        if ranks.any_rank(not all(self._training.can_repeat(one) for one in update.micro)):
            return None, 0.0
        started = time.monotonic()
        losses = [self._training.loss_again(one) for one in update.micro]
        seconds = (time.monotonic() - started) / len(losses)
        for one in update.micro:
            self.rows += self._training.rows_again(partial(self._training.loss_again, one), one.batch, one.moment)
        return mean_loss([one for one in losses if one is not None]), seconds

    def _others(self, update: Update, ring: Sequence[Update], seconds: float) -> dict[str, tuple[float, float]]:
        """Return the losses of other batches by step, when they were trained on and now; the same steps on every rank."""
        candidates = [one for one in ring if one.step < update.step and one.own_loss is not None]
        usable = [one.step for one in candidates if all(self._training.can_repeat(micro) for micro in one.micro[:1])]
        of_ranks = ranks.gather([usable, seconds])
        slowest = max(float(one[1]) for one in of_ranks)
        if not slowest:
            return {}
        shared = set(usable).intersection(*(one[0] for one in of_ranks))
        room = int(self._training.settings.scene_seconds / slowest) - 2
        num = max(0, min(self._training.settings.scene_batches, room))
        # The latest ones may already have been trained on at a bad state, so spread them over the ring.
        steps = sorted(shared)[:: max(1, len(shared) // max(num, 1))][:num] if num else []
        found: dict[str, tuple[float, float]] = {}
        for one in candidates:
            if one.step in steps:
                first = one.micro[0]
                now = self._training.loss_again(first)
                then = mean_loss(first.seen_losses())
                if now is not None and then is not None:
                    found[str(one.step)] = (then, now)
        return found

    def _read(self, ring: Sequence[Update], update: Update) -> list[SuspectRow]:
        """Return the worst rows of this rank, with the text around their worst tokens and its sign."""
        found = []
        for row in sorted(range(len(self.rows)), key=lambda row: -_finite(self.rows[row].mean))[:_NUM_ROWS]:
            losses, targets = self.rows[row]
            ranked = sorted(range(len(losses)), key=lambda at: -_finite(losses[at]))[:_NUM_TOKENS]
            tokens = tuple((self._text([targets[at]]) or str(targets[at]), losses[at]) for at in ranked)
            name = self.names[row] if row < len(self.names) else ("", -1)
            found.append((name, self.rows[row].mean, _around_worst(self.rows[row]), tokens))
        return self._suspects(ring, update, found)

    def _suspects(self, ring: Sequence[Update], update: Update, found: Sequence[_Found]) -> list[SuspectRow]:
        """Return rows with their text and its clearest sign, compared with the rows of earlier batches."""
        earlier = [micro for one in ring if one.step < update.step for micro in one.micro if micro.is_unchanged()]
        rows_before = [row[:_WINDOW] for micro in earlier for row in token_rows(micro.batch)][-_NUM_TEXTS:]
        usual = [self._text(row) for row in rows_before]
        parts = [part for _, _, part, _ in found]
        texts = [self._text(part) for part in parts]
        signs: list[list[Sign]] = [[] for _ in found]
        if sum(map(bool, usual)) >= _MIN_TEXTS:
            signs = read_texts(texts, profile_of(usual), tokens=parts)
        rows = []
        for ((name, number), loss, _, tokens), text, of_row in zip(found, texts, signs, strict=True):
            suspect = Suspect(dataset=name, sample=number, rank=ranks.rank(), loss=loss, text=text[:_MAX_TEXT])
            rows.append(SuspectRow(suspect, tokens, of_row[0] if of_row else Sign("", 0.0)))
        return rows

    def _text(self, tokens: list[int]) -> str:
        if self._training.decode is None:
            return ""
        try:
            return str(self._training.decode(tokens))
        except Exception:  # noqa: BLE001  a user's decoder may raise anything: then there is no text
            return ""


def _merged(update: Update, ring: Sequence[Update], normal: float, found: list[Any]) -> SceneFacts:
    owns = [one["own"] for one in found if one["own"] is not None]
    is_known = len(owns) == len(found)
    rows = msgspec.convert([one for rank in found for one in rank["rows"]], list[SuspectRow])
    others = []
    for step in found[0]["others"]:
        if all(step in rank["others"] for rank in found):
            then, now = zip(*(rank["others"][step] for rank in found), strict=True)
            others.append((sum(then) / len(found), sum(now) / len(found)))
    return SceneFacts(
        step=update.step,
        own=sum(owns) / len(owns) if is_known else float("nan"),
        is_exact=all(one["is_exact"] for one in found) if is_known else None,
        normal=normal,
        others=others,
        rows=sorted(rows, key=lambda one: -_finite(one.loss)),
        row_losses=[loss for rank in found for loss in rank["losses"]],
        rates=[(one.step, one.lr) for one in ring],
    )


def _around_worst(row: RowLosses) -> list[int]:
    """Return the tokens of a row around its highest losses."""
    if len(row.targets) <= _WINDOW:
        return row.targets
    start = int(np.convolve([_finite(loss) for loss in row.losses], np.ones(_WINDOW), "valid").argmax())
    return row.targets[start : start + _WINDOW]


def judge(facts: SceneFacts) -> list[Cause]:
    """Return the causes, most likely first; at least one."""
    if facts.is_exact is None or not facts.others:
        return [make_cause(UNKNOWN, 0.3, ["the step could not be run again at the scene"], step=facts.step)]
    if is_state_bad(facts.own, facts.normal, facts.others):
        return _state(facts)
    return _data(facts)


def judge_rows(step: int, rows: Sequence[SuspectRow], expected: Sequence[float], z: Sequence[float]) -> list[Cause]:
    """Return the causes when the mean is normal but single rows are outliers, worst first."""
    told = [
        f"{_told(row)}, rows of its length {usual:.4g}: {far:.1f} deviations"
        for row, usual, far in zip(rows, expected, z, strict=False)
    ]
    return _blamed(step, told, rows)


def _told(row: SuspectRow) -> str:
    return f"row {row.suspect.dataset}:{row.suspect.sample} has a loss of {row.loss:.4g}"


def is_state_bad(own: float, normal: float, others: Sequence[tuple[float, float]]) -> bool:
    """Return whether the state is to blame: other batches have risen by much of the rise of the step's own batch."""
    if not others:
        return False
    usual = normal if math.isfinite(normal) else Spread([then for then, _ in others]).median
    return _rise_of(others) > _STATE_SHARE * (_finite(own) - _finite(usual)) > 0


def _rise_of(others: Sequence[tuple[float, float]]) -> float:
    return Spread([_finite(now) - _finite(then) for then, now in others]).median


def experiments(facts: SceneFacts) -> list[Experiment]:
    """Describe what was done at the scene."""
    told = {None: "could not be run again", True: "is the same to the bit", False: "is another"}[facts.is_exact]
    found = [
        Experiment(
            question="does it happen again?",
            done="the step's forward again, before the optimiser moved",
            found=f"the loss {told}: {facts.own:.4g}",
            numbers={"own": facts.own},
        )
    ]
    if facts.others:
        then, now = (Spread(losses).median for losses in zip(*facts.others, strict=True))
        found.append(
            Experiment(
                question="data or state?",
                done=f"{len(facts.others)} other batches at the state before step {facts.step}",
                found=f"their loss is {now:.4g}, and was {then:.4g} when they were trained on; this batch has {facts.own:.4g}",
                numbers={"own": facts.own, "others": now, "others_then": then},
            )
        )
    return found


def _state(facts: SceneFacts) -> list[Cause]:
    told = [f"other batches have a loss {_rise_of(facts.others):.3g} higher than when they were trained on"]
    for (_, before), (step, rate) in reversed(list(zip(facts.rates, facts.rates[1:], strict=False))):
        if step < facts.step and before > 0 and rate / before >= _RATE_RATIO:
            jump = f"the learning rate was {rate:.3g} at step {step}, and {before:.3g} before"
            return [make_cause("learning_rate", 0.8, [jump, *told], step=facts.step, setting="lr")]
    title = "The state is bad: other batches have a higher loss too."
    return [make_cause(UNKNOWN, 0.6, told, step=facts.step, title=title, bad_checkpoint=facts.step - 1)]


def _data(facts: SceneFacts) -> list[Cause]:
    now = Spread([one for _, one in facts.others]).median
    told = [f"this batch has a loss of {facts.own:.4g}, {len(facts.others)} others {now:.4g} at the same weights"]
    if not facts.rows:
        return [make_cause("hard_sample", 0.6, told, step=facts.step)]
    worst = facts.rows[0]
    half_way = 0.5 * worst.loss + 0.5 * Spread(facts.row_losses).median if math.isfinite(worst.loss) else math.inf
    blamed = [one for one in facts.rows if not one.loss < half_way]
    told.append(f"{_told(worst)}, the middle one of {len(facts.row_losses)} rows {Spread(facts.row_losses).median:.4g}")
    if worst.tokens:
        told.append("worst tokens: " + ", ".join(f"{text!r} {loss:.3g}" for text, loss in worst.tokens))
    return _blamed(facts.step, told, blamed)


def _blamed(step: int, told: Sequence[str], blamed: Sequence[SuspectRow]) -> list[Cause]:
    """Return the causes when rows are to blame: the sign of their text, or that they are hard."""
    sign = max((one.sign for one in blamed), key=lambda one: one.strength)
    suspects = [one.suspect for one in blamed]
    if sign.kind in rules():  # not every kind of sign is a cause: a text may be over-long, or have none
        sure = min(0.9, 0.5 + 0.4 * sign.strength)
        return [
            make_cause(sign.kind, sure, [*told, *sign.evidence], step=step, suspects=suspects),
            make_cause("hard_sample", 0.9 - sure, told, step=step, suspects=suspects),
        ]
    return [make_cause("hard_sample", 0.7, told, step=step, suspects=suspects)]


def make_cause(name: str, confidence: float, evidence: Sequence[str], *, step: int, **pointers: Any) -> Cause:
    """Return a cause with its title and advice."""
    return rules()[name].cause(name, Finding(score=confidence, evidence=evidence, **pointers), confidence, step)


def _finite(loss: Any) -> float:
    """Return a loss for sorting and calculations, with non-finite values as a very large number."""
    return float(loss) if math.isfinite(loss) else 1e30
