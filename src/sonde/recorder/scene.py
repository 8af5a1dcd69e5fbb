"""The scene of an event: what happens between backward and the optimizer step when the loss has
jumped.

    1. the step's forward again, without anything watching: the same loss, to the bit
    2. once more with the losses of single tokens recorded; the worst rows are read as text. Where
       the loss does not show its rows, they are run one by one (row_search.py)
    3. other batches of the last steps at the same weights, as many as fit into `scene_seconds`
    4. if numbers are not finite: where they break (broken_step.py)

If the first does not give the same loss to the bit, something changed that cannot be put back. Then
nothing else is run, and nothing is run again in this run.

All ranks do the same, in the same order, and combine their results. A rank on which the look fails
still joins the others.

What was found is evidence (forensics/scene_evidence.py); the judge is the same as for a replay.
"""

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from sonde import ranks
from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.case import same_bits
from sonde.forensics.scene_evidence import SceneEvidence, SceneRow, finite
from sonde.forensics.verdict import Suspect
from sonde.recorder.batch_tree import named_rows, token_rows
from sonde.recorder.broken_step import broken_as_it_is, find_broken
from sonde.recorder.losses import RowLosses, add_up, mean_loss
from sonde.recorder.row_search import RowSearch, find_row_losses
from sonde.recorder.row_values import odd_rows
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch, Update
from sonde.spikes.detectors import Event
from sonde.texts.languages import identify
from sonde.texts.profile import profile_of
from sonde.texts.signs import Sign, find_signs_of_all

_NUM_BATCHES: Final = 6
"""The number of other batches to run, to tell data from state."""
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


@dataclass
class _Look:
    """What one rank finds."""

    can_repeat: bool = False
    """Whether the step's forward passes can be run again."""
    own: float | None = None
    """The loss of the step when it was run again."""
    is_exact: bool = False
    """Whether that is the recorded loss, to the bit."""
    seconds: float = 0.0
    """How long one forward pass takes."""
    others: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By step, as a key of JSON: the loss of another batch then and now."""
    suspects: list[SceneRow] = field(default_factory=list)
    row_losses: list[float] = field(default_factory=list)
    row_weights: list[float] = field(default_factory=list)
    row_problem: str = ""
    num_odd_rows: int = 0
    """How many rows hold values unlike those of earlier batches."""
    broken: BrokenNumbers | None = None
    error: BaseException | None = None


class RankFound(NamedTuple):
    """What one rank tells the others."""

    own: float | None
    is_exact: bool
    others: dict[str, tuple[float, float]]
    rows: list[SceneRow]
    row_losses: list[float]
    row_weights: list[float]
    row_problem: str
    num_odd_rows: int
    broken: BrokenNumbers | None


class Scene:
    """Looks into the events of one training."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.rows: list[RowLosses] = []
        """The rows of the step on this rank, if known."""
        self.has_tokens = True
        """Whether the losses of these rows are known by token."""
        self.names: list[tuple[str, int]] = []
        """The names of those rows."""

    def prepare(self) -> None:
        """Load slow dependencies in the background, so that an event can be looked into at once."""
        if self._training.decode is not None:
            threading.Thread(
                target=identify, args=("Some words.",), name="sonde-languages", daemon=True
            ).start()

    def investigate(self, update: Update, recent: Sequence[Update], event: Event) -> SceneEvidence:
        """Look into an update at which an event began. Every rank must call this."""
        self.rows = []
        self.has_tokens = True
        look = _Look()
        is_broken = not (math.isfinite(event.value) and math.isfinite(update.loss or 0.0))
        self._try(look, lambda: self._prepare_look(update, look))
        if not ranks.any_rank(not look.can_repeat):
            with self._training.standing_still([*recent, update]):
                self._try(look, lambda: self._run_own(update, look))
                steps = self._shared_steps(update, recent, look)
                self._try(look, lambda: self._run_others(recent, steps, look))
                if is_broken:
                    self._try(look, lambda: self._find_broken(update, look))
        elif is_broken:
            self._try(look, lambda: self._look_at_numbers(update, look))
        if look.own is not None and not look.is_exact:
            self._training.is_repeatable = False
            _logger.warning(
                "step %d gives another loss when it is run again (%.6g instead of %.6g), so no"
                " further look is taken in this run: a counter or a generator may have moved",
                *(update.step, look.own, update.own_loss),
            )
        self._try(look, lambda: self._read_worst_rows(recent, update, look))
        own = RankFound(
            own=look.own,
            is_exact=look.is_exact,
            others=look.others,
            rows=look.suspects,
            row_losses=look.row_losses,
            row_weights=look.row_weights,
            row_problem=look.row_problem,
            num_odd_rows=look.num_odd_rows,
            broken=look.broken,
        )
        found = msgspec.convert(ranks.gather(msgspec.to_builtins(own)), list[RankFound])
        if look.error is not None:
            raise look.error
        return _merged(update, recent, event, found)

    def read_rows(
        self, update: Update, recent: Sequence[Update], rows: Sequence[int]
    ) -> list[SceneRow]:
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
        return self._suspects(recent, update, found, self._oddities(recent, update))

    def _try(self, look: _Look, part: Any) -> None:
        """Do a part of a look, unless an earlier one failed: the other ranks wait for this one."""
        if look.error is None:
            try:
                part()
            except (Exception, SystemExit) as error:  # noqa: BLE001  raised when all ranks have met
                look.error = error

    def _prepare_look(self, update: Update, look: _Look) -> None:
        """Note the names of the rows, and whether all micro-batches can be run again."""
        self.names = update.names()
        self._training.find_what_cannot_be_put_back()
        can_repeat = bool(update.micro) and not update.has_other_moved
        look.can_repeat = can_repeat and all(
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
        if not add_up(self.rows, look.own):
            self.rows = []  # they show a part of the loss only, or none
            self._search_rows(update, look)
            return
        look.row_losses = [row.mean for row in self.rows]
        look.row_weights = [float(len(row.losses)) for row in self.rows]

    def _search_rows(self, update: Update, look: _Look) -> None:
        """Find the losses of the rows by running them one by one, if time allows."""
        num_rows = update.num_rows
        if num_rows * look.seconds > self._training.options.scene_seconds:
            look.row_problem = f"running its {num_rows} rows one by one would take too long"
            return
        loss_from = update.loss_from
        for micro in update.micro:
            whole = mean_loss(micro.seen_losses())
            assert whole is not None  # the step was run again, so it has a loss
            search = _losses_of_rows(self._training, micro, loss_from, whole)
            if search.problem:
                look.row_losses = []
                look.row_weights = []
                look.row_problem = search.problem
                return
            look.row_losses += search.losses
            look.row_weights += search.weights
        self.rows = [RowLosses([loss], []) for loss in look.row_losses]
        self.has_tokens = False

    def _find_broken(self, update: Update, look: _Look) -> None:
        """Find where the numbers of the update stop being finite."""
        for micro in update.micro:
            look.broken = find_broken(self._training, micro)
            if look.broken is not None:
                break
        if look.broken is not None and look.row_losses:
            bad = [row for row, loss in enumerate(look.row_losses) if not math.isfinite(loss)]
            look.broken = replace(look.broken, loss_rows=tuple(bad))

    def _look_at_numbers(self, update: Update, look: _Look) -> None:
        """Look at the numbers as they are, where the step cannot be run again."""
        is_forward = not math.isfinite(update.loss or 0.0)
        if not update.is_applied:
            model = self._training.model
            look.broken = broken_as_it_is(model, update.micro, is_forward=is_forward)

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
        count = max(0, min(_NUM_BATCHES, affordable))
        if not count or not shared:
            return []
        # The latest ones may already have been trained on at a bad state, so spread them.
        return shared[:: max(1, len(shared) // count)][:count]

    def _run_others(self, recent: Sequence[Update], steps: Sequence[int], look: _Look) -> None:
        """Run the first micro-batches of some earlier steps at the current weights."""
        for other in recent:
            if other.step in steps:
                first = other.micro[0]
                now = self._training.loss_again(first)
                then = mean_loss(first.seen_losses())
                if now is not None and then is not None:
                    look.others[str(other.step)] = (then, now)

    def _read_worst_rows(self, recent: Sequence[Update], update: Update, look: _Look) -> None:
        """Read the worst rows of this rank: the text around their worst tokens, and its sign."""
        order = sorted(range(len(self.rows)), key=lambda row: -finite(self.rows[row].mean))
        inputs = [tokens for micro in update.micro for tokens in token_rows(micro.batch)]
        found: list[_Found] = []
        for row in order[:_NUM_ROWS]:
            name = self.names[row] if row < len(self.names) else ("", -1)
            to_read = inputs[row][:_WINDOW] if row < len(inputs) else []
            worst: tuple[tuple[str, float], ...] = ()
            if self.has_tokens:
                to_read = _around_worst(self.rows[row])
                worst = self._worst_tokens(self.rows[row])
            found.append((name, self.rows[row].mean, to_read, worst))
        oddities = self._oddities(recent, update)
        look.num_odd_rows = len(oddities)
        look.suspects = self._suspects(recent, update, found, oddities)

    def _worst_tokens(self, row: RowLosses) -> tuple[tuple[str, float], ...]:
        """Return the tokens of a row with the highest losses, as text."""
        losses, targets = row
        ranked = sorted(range(len(losses)), key=lambda at: -finite(losses[at]))
        return tuple(
            (self._text([targets[at]]) or str(targets[at]), losses[at])
            for at in ranked[:_NUM_TOKENS]
        )

    def _suspects(
        self,
        recent: Sequence[Update],
        update: Update,
        found: Sequence[_Found],
        oddities: Mapping[tuple[str, int], str],
    ) -> list[SceneRow]:
        """Return rows with their text and its clearest sign, compared with the rows of earlier
        batches, and with what is odd about their values.
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
            sign = of_row[0] if of_row else Sign("", 0.0)
            rows.append(SceneRow(suspect, tokens, sign, oddities.get(name, "")))
        return rows

    def _oddities(self, recent: Sequence[Update], update: Update) -> dict[tuple[str, int], str]:
        """Return what is odd about the values of rows, by the name of the row."""
        before = [
            micro.batch
            for other in recent
            if other.step < update.step
            for micro in other.micro
            if micro.is_unchanged()
        ]
        found: dict[tuple[str, int], str] = {}
        for micro in update.micro:
            names = named_rows(micro.names, micro.batch)
            for row, oddity in odd_rows(micro.batch, before).items():
                if row < len(names):
                    found[names[row]] = oddity
        return found

    def _text(self, tokens: list[int]) -> str:
        if self._training.decode is None:
            return ""
        try:
            return str(self._training.decode(tokens))
        except (Exception, SystemExit):  # noqa: BLE001
            # a user's decoder may raise anything: then there is no text
            return ""


def _losses_of_rows(
    training: Training, micro: MicroBatch, loss_from: str, whole: float
) -> RowSearch:
    """Run the rows of a micro-batch one by one and return their losses. Use it inside
    `standing_still`.
    """
    if training.step_function is None:
        return RowSearch(problem="the loop does not hand its step function to the recorder")

    def loss_of(part: Any) -> float | None:
        return training.run_to_loss(part, micro.last, micro.moment, loss_from)

    num_samples = None if micro.names is None else len(micro.names)
    try:
        return find_row_losses(micro.batch, whole, loss_of, training.options.rows, num_samples)
    except Exception as error:  # noqa: BLE001  a single row may be what a model cannot take
        return RowSearch(problem=f"a part of the batch cannot be run ({error})"[:200])


def _merged(
    update: Update, recent: Sequence[Update], event: Event, found: Sequence[RankFound]
) -> SceneEvidence:
    """Return what all ranks found together."""
    own, is_exact = _own_of(found)
    rows = [row for rank in found for row in rank.rows]
    row_losses: list[float] = []
    row_weights: list[float] = []
    if all(rank.row_losses for rank in found):
        for rank in found:
            row_losses += rank.row_losses
            row_weights += rank.row_weights
    problems = [rank.row_problem for rank in found if rank.row_problem]
    rates = [(other.step, tuple(other.rates)) for other in recent]
    return SceneEvidence(
        step=update.step,
        metric=event.metric,
        own=own,
        is_exact=is_exact,
        normal=event.baseline if event.metric == "loss" else math.nan,
        others=_others_of(found),
        rows=sorted(rows, key=lambda row: -finite(row.loss)),
        row_losses=row_losses,
        row_weights=row_weights,
        row_problem=problems[0] if problems else "",
        loss_before=recent[-1].loss or math.nan if recent else math.nan,
        num_odd_rows=sum(rank.num_odd_rows for rank in found),
        num_rows=len(found) * update.num_rows,
        shape=_shape_of(update),
        other_shapes=sorted({_shape_of(other) for other in recent}),
        rates=[*rates, (update.step, tuple(update.rates))],
        broken=_broken_of(found),
    )


def _shape_of(update: Update) -> str:
    """Return the shape of the first tensor of an update's batch; empty if it has none."""
    tensors = update.micro[0].tensors if update.micro else []
    return " x ".join(map(str, tensors[0].shape)) if tensors else ""


def _own_of(found: Sequence[RankFound]) -> tuple[float, bool | None]:
    """Return the mean loss of the step over the ranks, and whether it is exact on all of them; NaN
    and None if a rank could not run it again.
    """
    losses = [rank.own for rank in found if rank.own is not None]
    if len(losses) < len(found):
        return math.nan, None
    return sum(losses) / len(losses), all(rank.is_exact for rank in found)


def _others_of(found: Sequence[RankFound]) -> list[tuple[float, float]]:
    """Return the losses then and now of the batches that all ranks have run, as means over them."""
    others = []
    for step in found[0].others:
        pairs = [rank.others[step] for rank in found if step in rank.others]
        if len(pairs) == len(found):
            then = sum(pair[0] for pair in pairs) / len(pairs)
            now = sum(pair[1] for pair in pairs) / len(pairs)
            others.append((then, now))
    return others


def _broken_of(found: Sequence[RankFound]) -> BrokenNumbers | None:
    """Return where the numbers of the first rank that has such a place break."""
    broken = [number for number, rank in enumerate(found) if rank.broken is not None]
    if not broken:
        return None
    first = found[broken[0]].broken
    assert first is not None
    return replace(first, ranks=tuple(broken), world_size=len(found))


def _around_worst(row: RowLosses) -> list[int]:
    """Return the tokens of a row around its highest losses."""
    if len(row.targets) <= _WINDOW:
        return row.targets
    losses = [finite(loss) for loss in row.losses]
    start = int(np.convolve(losses, np.ones(_WINDOW), "valid").argmax())
    return row.targets[start : start + _WINDOW]
