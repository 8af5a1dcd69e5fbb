"""The scene of an event: what happens between backward and the optimizer step when the loss has
jumped.

    1. the step's forward again, without anything watching: the same loss, to the bit
    2. once more with the losses of single tokens recorded; the worst rows are read as text
    3. other batches of the last steps at the same weights, as many as fit into `scene_seconds`

If the first does not give the same loss to the bit, something changed that cannot be put back. Then
nothing else is run, and nothing is run again in this run.

All ranks do the same, in the same order, and combine their results. A rank on which the look fails
still joins the others.

Data or state? The step's batch and others were run at the state before the step. If only this batch
has a high loss, it is the data; if the others do too, higher than when they were trained on, it is
the state. Replay and diagnosis can say more later, from older states.
"""

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from sonde import ranks
from sonde.forensics.case import same_bits
from sonde.forensics.verdict import Suspect
from sonde.recorder.batch_tree import token_rows
from sonde.recorder.losses import RowLosses, mean_loss
from sonde.recorder.training import Training
from sonde.recorder.update import Update
from sonde.texts.languages import identify
from sonde.texts.profile import profile_of
from sonde.texts.signs import Sign, find_signs_of_all

_NUM_ROWS: Final = 4
"""The number of rows per rank that are read as text."""
_NUM_TOKENS: Final = 8
_WINDOW: Final = 96
"""The number of tokens around the worst ones that are read as text."""
_MAX_TEXT: Final = 400
_NUM_TEXTS: Final = 96
"""The number of rows from other batches that define what is usual."""
_MIN_TEXTS: Final = 8

_Found: TypeAlias = tuple[tuple[str, int], float, list[int], tuple[tuple[str, float], ...]]
"""A row: its name, its loss, the tokens to read, and its worst tokens with their losses."""

_logger = logging.getLogger("sonde")


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


@dataclass
class _Look:
    """What one rank finds."""

    can_repeat: bool = False
    """Whether the step's forward passes can be run again."""
    own: float | None = None
    is_exact: bool = False
    seconds: float = 0.0
    """How long one forward pass takes."""
    others: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By step, as a key of JSON: the loss of another batch then and now."""
    suspects: list[SuspectRow] = field(default_factory=list)
    error: BaseException | None = None


class Scene:
    """Looks into the events of one training."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.rows: list[RowLosses] = []
        """The rows of the step on this rank, if known."""
        self.names: list[tuple[str, int]] = []
        """The names of those rows."""

    def prepare(self) -> None:
        """Load slow dependencies in the background, so that an event can be looked into at once."""
        if self._training.decode is not None:
            threading.Thread(
                target=identify, args=("Some words.",), name="sonde-languages", daemon=True
            ).start()

    def investigate(self, update: Update, recent: Sequence[Update], normal: float) -> SceneFacts:
        """Look into an update. Every rank must call this."""
        self.rows = []
        look = _Look()
        self._try(look, lambda: self._prepare_look(update, look))
        if not ranks.any_rank(not look.can_repeat):
            with self._training.standing_still():
                self._try(look, lambda: self._run_own(update, look))
                steps = self._shared_steps(update, recent, look)
                self._try(look, lambda: self._run_others(recent, steps, look))
        if look.own is not None and not look.is_exact:
            self._training.is_repeatable = False
            _logger.warning(
                "step %d gives another loss when it is run again (%.6g instead of %.6g), so no"
                " further look is taken in this run: a counter or a generator may have moved",
                *(update.step, look.own, update.own_loss),
            )
        self._try(look, lambda: self._read_rows(recent, update, look))
        found = ranks.gather(
            {
                "own": look.own,
                "is_exact": look.is_exact,
                "others": look.others,
                "rows": msgspec.to_builtins(look.suspects),
                "losses": [row.mean for row in self.rows],
            }
        )
        if look.error is not None:
            raise look.error
        return _merged(update, recent, normal, found)

    def read_rows(
        self, update: Update, recent: Sequence[Update], rows: Sequence[int]
    ) -> list[SuspectRow]:
        """Read outlying rows of an update as text. Nothing is run again, and no other rank is
        involved.
        """
        names = update.names()
        losses: list[float] = []
        tokens: list[list[int]] = []
        for micro in update.micro:
            losses += micro.rows.losses.tolist() if micro.rows else []
            tokens += token_rows(micro.batch)
        if len(tokens) != len(losses) or len(names) != len(losses):
            return []
        chosen = rows[:_NUM_ROWS]
        found: list[_Found] = [
            (names[row], losses[row], tokens[row][:_WINDOW], ()) for row in chosen
        ]
        return self._suspects(recent, update, found)

    def _try(self, look: _Look, part: Any) -> None:
        """Do a part of a look, unless an earlier one failed: the other ranks wait for this one."""
        if look.error is None:
            try:
                part()
            except (Exception, SystemExit) as error:  # noqa: BLE001  raised when all ranks have met
                look.error = error

    def _prepare_look(self, update: Update, look: _Look) -> None:
        self.names = update.names()
        look.can_repeat = bool(update.micro) and all(
            self._training.can_repeat(micro) for micro in update.micro
        )

    def _run_own(self, update: Update, look: _Look) -> None:
        """Run the step's own batches again: for the loss, and once more for the rows."""
        training = self._training
        started = time.monotonic()
        losses = [training.loss_again(micro) for micro in update.micro]
        look.seconds = (time.monotonic() - started) / len(losses)
        look.own = mean_loss([loss for loss in losses if loss is not None])
        if look.own is None or update.own_loss is None:
            return
        look.is_exact = same_bits(look.own, update.own_loss)
        if not look.is_exact:
            return
        for micro in update.micro:
            forward = partial(training.loss_again, micro)
            self.rows += training.rows_again(forward, micro.batch, micro.moment)

    def _shared_steps(self, update: Update, recent: Sequence[Update], look: _Look) -> list[int]:
        """Return the steps whose batches are run at the current state: the same on every rank."""
        usable = []
        if look.is_exact:
            earlier = [other for other in recent if other.step < update.step and other.micro]
            usable = [
                other.step
                for other in earlier
                if other.own_loss is not None and self._training.can_repeat(other.micro[0])
            ]
        of_ranks = ranks.gather([usable, look.seconds])
        slowest = max(float(seconds) for _, seconds in of_ranks)
        if not slowest:
            return []
        shared = sorted(set(usable).intersection(*(steps for steps, _ in of_ranks)))
        options = self._training.options
        affordable = int(options.scene_seconds / slowest) - 2
        count = max(0, min(options.scene_batches, affordable))
        if not count or not shared:
            return []
        # The latest ones may already have been trained on at a bad state, so spread them.
        return shared[:: max(1, len(shared) // count)][:count]

    def _run_others(self, recent: Sequence[Update], steps: Sequence[int], look: _Look) -> None:
        for other in recent:
            if other.step in steps:
                first = other.micro[0]
                now = self._training.loss_again(first)
                then = mean_loss(first.seen_losses())
                if now is not None and then is not None:
                    look.others[str(other.step)] = (then, now)

    def _read_rows(self, recent: Sequence[Update], update: Update, look: _Look) -> None:
        """Read the worst rows of this rank: the text around their worst tokens, and its sign."""
        order = sorted(range(len(self.rows)), key=lambda row: -finite(self.rows[row].mean))
        found: list[_Found] = []
        for row in order[:_NUM_ROWS]:
            losses, targets = self.rows[row]
            ranked = sorted(range(len(losses)), key=lambda at: -finite(losses[at]))
            tokens = tuple(
                (self._text([targets[at]]) or str(targets[at]), losses[at])
                for at in ranked[:_NUM_TOKENS]
            )
            name = self.names[row] if row < len(self.names) else ("", -1)
            found.append((name, self.rows[row].mean, _around_worst(self.rows[row]), tokens))
        look.suspects = self._suspects(recent, update, found)

    def _suspects(
        self, recent: Sequence[Update], update: Update, found: Sequence[_Found]
    ) -> list[SuspectRow]:
        """Return rows with their text and its clearest sign, compared with the rows of earlier
        batches.
        """
        rows_before: list[list[int]] = []
        for other in recent:
            if other.step < update.step:
                for micro in other.micro:
                    if micro.is_unchanged():
                        rows_before += [row[:_WINDOW] for row in token_rows(micro.batch)]
        usual = [self._text(row) for row in rows_before[-_NUM_TEXTS:]]
        parts = [part for _, _, part, _ in found]
        texts = [self._text(part) for part in parts]
        signs: list[list[Sign]] = [[] for _ in found]
        if sum(map(bool, usual)) >= _MIN_TEXTS:
            signs = find_signs_of_all(texts, profile_of(usual), tokens=parts)
        rows = []
        for (name, loss, _, tokens), text, of_row in zip(found, texts, signs, strict=True):
            suspect = Suspect(
                dataset=name[0],
                sample=name[1],
                rank=ranks.rank(),
                loss=loss,
                text=text[:_MAX_TEXT],
            )
            rows.append(SuspectRow(suspect, tokens, of_row[0] if of_row else Sign("", 0.0)))
        return rows

    def _text(self, tokens: list[int]) -> str:
        if self._training.decode is None:
            return ""
        try:
            return str(self._training.decode(tokens))
        except (Exception, SystemExit):  # noqa: BLE001
            # a user's decoder may raise anything: then there is no text
            return ""


def _merged(
    update: Update, recent: Sequence[Update], normal: float, found: list[Any]
) -> SceneFacts:
    owns = [rank["own"] for rank in found if rank["own"] is not None]
    is_known = len(owns) == len(found)
    rows = msgspec.convert([row for rank in found for row in rank["rows"]], list[SuspectRow])
    others = []
    for step in found[0]["others"]:
        if all(step in rank["others"] for rank in found):
            then, now = zip(*(rank["others"][step] for rank in found), strict=True)
            others.append((sum(then) / len(found), sum(now) / len(found)))
    return SceneFacts(
        step=update.step,
        own=sum(owns) / len(owns) if is_known else math.nan,
        is_exact=all(rank["is_exact"] for rank in found) if is_known else None,
        normal=normal,
        others=others,
        rows=sorted(rows, key=lambda row: -finite(row.loss)),
        row_losses=[loss for rank in found for loss in rank["losses"]],
        rates=[(other.step, other.lr) for other in recent],
    )


def _around_worst(row: RowLosses) -> list[int]:
    """Return the tokens of a row around its highest losses."""
    if len(row.targets) <= _WINDOW:
        return row.targets
    losses = [finite(loss) for loss in row.losses]
    start = int(np.convolve(losses, np.ones(_WINDOW), "valid").argmax())
    return row.targets[start : start + _WINDOW]


def finite(loss: Any) -> float:
    """Return a loss for sorting and calculations, with non-finite values as a very large number."""
    return float(loss) if math.isfinite(loss) else 1e30
