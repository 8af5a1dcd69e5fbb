"""What is known at the scene of an event: in place, between backward and the optimizer step. Plain
data with a few derived numbers, no torch.

    data or state?     the step's batch and others were run at the state before the step
    which rows?        the losses of its rows, and the loss of the step without some of them
    what changed?      the learning rates of the last steps

The recorder fills it in (recorder/scene.py), and causes judge it (`at_scene` of their rules). A
question that the scene cannot answer is left to a replay.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sonde.checkpoint.resume_report import ResumeReport
from sonde.data.skip_list import sample_name
from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.case import EXPLODED
from sonde.forensics.verdict import Experiment, Suspect
from sonde.spikes.sample_watch import LOSS
from sonde.spread import Spread
from sonde.texts.signs import Sign

LITTLE: Final = 0.25
"""A loss that rises by less than this fraction rises by little."""
_STATE_SHARE: Final = 0.4
"""The state is to blame if other batches have risen by this fraction of the rise of this one."""
_NORMAL_Z: Final = 3.0
_NORMAL_SHARE: Final = 0.3
"""Without the rows to blame, the loss is normal if it is within so many deviations of other
batches, or if no more than this share of the rise is left.
"""
_RESTART: Final = 3.0
"""A rate that rises by this factor within the last updates is a restart of its schedule, if it had
been as high before.
"""
_AS_BEFORE: Final = 1.05
_FEW: Final = 0.5
"""Rows that are more than this fraction of a batch are not a few."""


class SceneRow(NamedTuple):
    """One row of the step's batch, of any rank."""

    suspect: Suspect
    """The row as a suspect of a verdict, with the text around its worst tokens."""
    tokens: tuple[tuple[str, float], ...]
    """Its worst tokens with their losses."""
    sign: Sign
    """The clearest sign in its text; without a kind if there is none."""
    oddity: str = ""
    """What is odd about its values, if it has numbers instead of text."""

    @property
    def loss(self) -> float:
        """The mean loss over its tokens."""
        return math.nan if self.suspect.loss is None else self.suspect.loss

    def describe(self) -> str:
        """Say which row it is, and its loss."""
        return f"sample {self.name} has a loss of {self.loss:.4g}"

    @property
    def name(self) -> str:
        """How the sample is called."""
        return sample_name(self.suspect.dataset, self.suspect.sample)


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneEvidence:
    """What was found at the scene, over all ranks."""

    step: int
    metric: str = "loss"
    """What stands out: `loss`, `grad_norm`, or `sample` if only single rows do."""
    own: float = math.nan
    """The loss of the step's batch when it is run again."""
    is_exact: bool | None = None
    """Whether that is bit-identical to the loss of the step; None if it could not be run again."""
    normal: float = math.nan
    """The expected loss; NaN if it is not known."""
    others: Sequence[tuple[float, float]] = ()
    """Other batches: their loss when they were trained on, and at the current state."""
    rows: Sequence[SceneRow] = ()
    """The worst rows of the step's batch, worst first."""
    row_losses: Sequence[float] = ()
    """The losses of all rows; empty if they are not known."""
    row_weights: Sequence[float] = ()
    """How much each of these rows counts in the loss of the step."""
    row_problem: str = ""
    """Why the losses of rows are not known."""
    row_deviations: Sequence[float] = ()
    """If single rows stand out: how many deviations each of `rows` is from rows of its length."""
    row_measure: str = LOSS
    """If single rows stand out: what these deviations are about."""
    row_expected: Sequence[float] = ()
    """If single rows stand out: the loss that rows of their length have."""
    loss_before: float = math.nan
    """The loss of the step before; NaN if it is not known."""
    first_loss: float = -math.inf
    """The first loss of this process."""
    num_odd_rows: int = 0
    """How many rows of the batch hold values unlike those of earlier batches."""
    num_rows: int = 0
    """How many rows the batch has."""
    shape: str = ""
    """The shape of the first tensor of the batch."""
    other_shapes: Sequence[str] = ()
    """The shapes that it has in the other batches."""
    rates: Sequence[tuple[int, Sequence[float]]] = ()
    """The learning rates of the last updates, those of the step last: one for each group."""
    highest_rate: float = 0.0
    """The highest rate of any group before those updates."""
    broken: BrokenNumbers | None = None
    """Where the numbers stopped being finite, if they did."""
    resume: ResumeReport | None = None
    """What this process reported when it resumed, if it did."""
    preceded: Sequence[str] = ()
    """What had grown before the event, in sentences."""

    @property
    def usual(self) -> float:
        """The loss that was to be expected of a batch at this step."""
        if math.isfinite(self.normal):
            return self.normal
        return Spread([then for then, _ in self.others]).median

    @property
    def has_exploded_before(self) -> bool:
        """Whether the loss of the step before was already far beyond what is usual, and above that
        of the first step: beside a loss of nearly nothing, every other is far beyond it.
        """
        return self.loss_before > max(EXPLODED * abs(self.usual), self.first_loss)

    @property
    def others_now(self) -> Spread:
        """The losses of other batches at the state before the step."""
        return Spread([now for _, now in self.others])

    @property
    def rise_of_others(self) -> float:
        """How much higher the loss of other batches is than when they were trained on."""
        return Spread([finite(now) - finite(then) for then, now in self.others]).median

    @property
    def is_state_bad(self) -> bool:
        """Whether other batches have risen by much of the rise of the step's own batch."""
        if not self.others:
            return False
        return self.rise_of_others > _STATE_SHARE * (finite(self.own) - finite(self.usual)) > 0

    @property
    def has_risen_by_little(self) -> bool:
        """Whether the loss of the step is at most a little above the usual one."""
        rise = finite(self.own) - finite(self.usual)
        return rise < LITTLE * abs(finite(self.usual))

    @property
    def is_only_this_batch(self) -> bool:
        """Whether other batches were tried and are normal: training goes on after such a batch."""
        return bool(self.others) and bool(self.is_exact) and not self.is_state_bad

    @property
    def has_restarted_rate(self) -> bool:
        """Whether the rate went up again in the last updates, to where it had been before, as
        schedules with warm restarts let it: a loss that rises then is meant to.
        """
        highest_of_each = [max(rates, default=0.0) for _, rates in self.rates]
        if not highest_of_each or not min(highest_of_each) > 0:
            return False
        rise = highest_of_each[-1] / min(highest_of_each)
        return rise >= _RESTART and max(highest_of_each) <= _AS_BEFORE * self.highest_rate

    @property
    def is_this_batch_high(self) -> bool:
        """Whether the step's batch has a far higher loss than others at the same weights."""
        now = self.others_now
        if not len(now) or not self.is_exact:
            return False
        return not finite(self.own) < now.median + _NORMAL_Z * now.deviation

    def blamed_rows(self) -> list[SceneRow]:
        """Return the few rows without which the loss is normal; empty if there are none.

        Only rows whose losses were measured count, only if the step is the same when it is run
        again, and only if other batches are normal at this state.
        """
        if self.metric == "sample":
            return list(self.rows)
        if not self.row_losses or not self.is_this_batch_high or self.is_state_bad:
            return []
        worst = max(map(finite, self.row_losses))
        middle = Spread(self.row_losses).median
        half_way = 0.5 * worst + 0.5 * middle
        high = [place for place, loss in enumerate(self.row_losses) if not finite(loss) < half_way]
        if len(high) > _FEW * len(self.row_losses) or not self._is_normal_without(high):
            return []
        return [row for row in self.rows if not finite(row.loss) < half_way]

    def _is_normal_without(self, left_out: Sequence[int]) -> bool:
        """Return whether the loss of the step is normal without these rows."""
        loss = self.loss_without(left_out)
        if not math.isfinite(loss):
            return False
        now = self.others_now
        if loss <= now.median + _NORMAL_Z * now.deviation:
            return True
        return loss - now.median <= _NORMAL_SHARE * (finite(self.own) - now.median)

    def loss_without(self, left_out: Sequence[int]) -> float:
        """Return the loss of the step without some rows; NaN if none is left."""
        weights = self.row_weights or [1.0] * len(self.row_losses)
        total = 0.0
        weight_left = 0.0
        for place, loss in enumerate(self.row_losses):
            if place not in left_out and weights[place] > 0:
                total += weights[place] * loss
                weight_left += weights[place]
        return total / weight_left if weight_left else math.nan

    def describe_batch(self) -> str:
        """Compare the step's batch with others at the same weights."""
        return (
            f"this batch has a loss of {self.own:.4g}, {len(self.others)} others"
            f" {self.others_now.median:.4g} at the same weights"
        )

    def describe_state(self) -> str:
        """Say how much worse other batches are than when they were trained on."""
        return (
            f"other batches have a loss {self.rise_of_others:.3g} higher than when they were"
            " trained on"
        )

    def describe_rows(self, blamed: Sequence[SceneRow]) -> list[str]:
        """Describe the rows to blame, one sentence each."""
        if self.metric == "sample":
            known = zip(blamed, self.row_expected, self.row_deviations, strict=False)
            return [
                f"{row.describe()}, rows of its length {usual:.4g}: {far:.1f} deviations of its"
                f" {self.row_measure}"
                for row, usual, far in known
            ]
        worst = blamed[0]
        middle = Spread(self.row_losses).median
        of_rows = f"the middle one of {len(self.row_losses)} rows {middle:.4g}"
        sentences = [self.describe_batch(), f"{worst.describe()}, {of_rows}"]
        without = self.loss_without(self._places_of(blamed))
        if math.isfinite(without):
            sentences.append(f"without {_them(blamed)} the loss of the step is {without:.4g}")
        if worst.tokens:
            tokens = ", ".join(f"{text!r} {loss:.3g}" for text, loss in worst.tokens)
            sentences.append(f"worst tokens: {tokens}")
        return sentences

    def _places_of(self, blamed: Sequence[SceneRow]) -> list[int]:
        least = min(finite(row.loss) for row in blamed)
        return [place for place, loss in enumerate(self.row_losses) if not finite(loss) < least]

    def experiments(self) -> list[Experiment]:
        """Describe what was done at the scene."""
        if self.metric == "sample":
            return []
        outcome = {
            None: "could not be run again",
            True: "is the same to the bit",
            False: "is another",
        }[self.is_exact]
        found = [
            Experiment(
                question="does it happen again?",
                done="the step's forward again, before the optimizer moved",
                found=f"the loss {outcome}: {self.own:.4g}",
                numbers={"own": self.own},
            )
        ]
        if self.others:
            then = Spread([before for before, _ in self.others]).median
            now = self.others_now.median
            found.append(
                Experiment(
                    question="data or state?",
                    done=f"{len(self.others)} other batches at the state before step {self.step}",
                    found=(
                        f"their loss is {now:.4g}, and was {then:.4g} when they were trained on;"
                        f" this batch has {self.own:.4g}"
                    ),
                    numbers={"own": self.own, "others": now, "others_then": then},
                )
            )
        if self.broken is not None:
            found.append(
                Experiment(
                    question="where do the numbers break?",
                    done="forward and backward again, with every module watched",
                    found="; ".join(self.broken.describe()) or "nowhere that could be seen",
                )
            )
        return found


def finite(loss: float) -> float:
    """Return a loss for sorting and calculations, with non-finite values as a very large number."""
    return float(loss) if math.isfinite(loss) else 1e30


def _them(rows: Sequence[SceneRow]) -> str:
    return "it" if len(rows) == 1 else "them"
