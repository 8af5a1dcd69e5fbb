"""The scene of an event: what happens between backward and the optimizer step when the loss has
jumped.

    1. the step's forward again, without anything watching: the same loss, to the bit
    2. once more with the losses of single tokens recorded; the worst rows are read as text. Where
       the loss does not show its rows, they are run one by one (row_search.py)
    3. if numbers are not finite: where they break (broken_step.py)
    4. other batches of the last steps at the same weights, as many as fit into `scene_seconds`

One micro-batch at a time, and without its activations (dropped_activations.py). No forward pass is
begun that does not fit into `scene_seconds` by what the step itself took. Without memory the look
ends, and the run goes on (scene_limits.py).

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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import msgspec

from sonde import ranks
from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.case import same_bits
from sonde.forensics.scene_evidence import SceneEvidence, SceneRow, finite
from sonde.recorder.batch_tree import token_rows
from sonde.recorder.broken_step import NO_ROOM, broken_as_it_is, find_broken
from sonde.recorder.dropped_activations import DroppedActivations
from sonde.recorder.guard import is_from_a_signal
from sonde.recorder.losses import RowLosses, add_up, mean_loss
from sonde.recorder.memory import device_of
from sonde.recorder.row_reader import (
    NUM_ROWS,
    WINDOW,
    Found,
    RowReader,
    are_targets_tokens,
    around_worst,
)
from sonde.recorder.row_search import RowSearch, find_row_losses
from sonde.recorder.scene_found import RankFound, merged
from sonde.recorder.scene_limits import SceneLimits, forward_seconds, is_out_of_memory
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch, Update
from sonde.spikes.detectors import Event
from sonde.texts.languages import identify

_NUM_BATCHES: Final = 6
"""The number of other batches to run, to tell data from state."""

_logger = logging.getLogger("sonde")


@dataclass
class _Look:
    """What one rank finds."""

    is_broken: bool = False
    """Whether the loss or a gradient is not finite."""
    can_repeat: bool = False
    """Whether the step's forward passes can be run again."""
    own: float | None = None
    """The loss of the step when it was run again."""
    is_exact: bool = False
    """Whether that is the recorded loss, to the bit."""
    seconds: float = 0.0
    """How long the forward pass of a micro-batch takes."""
    has_ended: str = ""
    """Why nothing more is run, though nothing failed; empty if that is not so."""
    may_search: bool = False
    """Whether there is time to run the rows one by one."""
    must_read_numbers: bool = False
    """Whether broken numbers are looked at as they are, because nothing more can be run."""
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

    def start_over(self) -> None:
        """Forget what was run."""
        self.own = None
        self.is_exact = False
        self.others = {}
        self.row_losses = []
        self.row_weights = []
        self.row_problem = ""
        self.error = None


class Scene:
    """Looks into the events of one training."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.reader = RowReader(training)
        """Reads rows as text."""
        self._needs_activations = False
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
        is_finite = math.isfinite(event.value) and math.isfinite(update.loss or 0.0)
        look = _Look(is_broken=not is_finite)
        training = self._training
        limits = SceneLimits(training.options.scene_seconds, device_of(training.model))
        self._try(look, lambda: self._prepare_look(update, recent, look))
        can_repeat = not ranks.any_rank(not look.can_repeat)
        is_short = not ranks.any_rank(not limits.allow(look.seconds))
        if can_repeat and is_short:
            look.seconds /= len(update.micro)
            self._run_again(update, recent, look, limits)
        elif look.is_broken:
            self._try(look, lambda: self._look_at_numbers(update, look))
        if can_repeat and not is_short:
            _logger.info(
                "step %d is not run again: it takes longer than scene_seconds", update.step
            )
        if look.own is not None and not look.is_exact:
            training.is_repeatable = False
            _logger.warning(
                "step %d gives another loss when it is run again (%.6g instead of %.6g), so no"
                " further look is taken in this run: a counter or a generator may have moved",
                *(update.step, look.own, update.own_loss),
            )
        if look.has_ended:
            training.is_repeatable = False
            _logger.warning(
                "step %d: the look at the scene ends, and nothing is run again in this run: %s",
                *(update.step, look.has_ended),
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
        return merged(update, recent, event, found)

    def _try(self, look: _Look, part: Callable[[], None]) -> None:
        """Do a part of a look, unless an earlier one failed: the other ranks wait for this one."""
        if look.error is None:
            try:
                part()
            except (Exception, SystemExit) as error:  # raised when all ranks have met
                if is_from_a_signal(error):
                    raise
                if is_out_of_memory(error):
                    look.has_ended = "there was no memory left"  # the error would hold tensors
                else:
                    look.error = error

    def _each(self, look: _Look, limits: SceneLimits, parts: Sequence[Callable[[], None]]) -> bool:
        """Do parts that are a forward pass each, one after another, as long as time and memory
        allow it on all ranks. Return whether all were done. Every rank must call this, with as
        many parts.
        """
        for part in parts:
            must_end = bool(look.error or look.has_ended) or not limits.allow(look.seconds)
            if ranks.any_rank(must_end):
                return False
            self._try(look, part)
            if limits.is_memory_exceeded():
                look.has_ended = look.has_ended or "it took more memory than a step"
        return not look.error and not look.has_ended

    def _prepare_look(self, update: Update, recent: Sequence[Update], look: _Look) -> None:
        """Note the names of the rows, whether all micro-batches can be run again, and how long
        that takes.
        """
        self.names = update.names()
        self._training.find_what_cannot_be_put_back()
        can_repeat = bool(update.micro) and not update.has_other_moved
        look.can_repeat = can_repeat and all(
            self._training.can_repeat(micro) for micro in update.micro
        )
        look.seconds = forward_seconds(recent)

    def _run_again(
        self, update: Update, recent: Sequence[Update], look: _Look, limits: SceneLimits
    ) -> None:
        """Run the step and other batches again, and keep their activations only if the loss itself
        takes gradients. Every rank must call this.
        """
        training = self._training
        drops = not self._needs_activations and not training.is_compiled
        dropped = DroppedActivations()
        light: AbstractContextManager[object] = dropped if drops else nullcontext()
        with training.standing_still([*recent, update]):
            with light:
                self._run_own(update, look, limits)
            starts_over = drops and ranks.any_rank(dropped.was_asked or look.error is not None)
            if not starts_over:
                if look.is_broken:
                    self._find_broken(update, look, limits)
                steps = self._shared_steps(update, recent, look, limits)
                with light:
                    self._run_others(recent, steps, look, limits)
        if starts_over:
            self._needs_activations = True
            self.rows = []
            look.start_over()
            self._run_again(update, recent, look, limits)
        elif look.must_read_numbers:  # gradients were set aside until here
            self._try(look, lambda: self._look_at_numbers(update, look))

    def _run_own(self, update: Update, look: _Look, limits: SceneLimits) -> None:
        """Run the step's own batches again, one at a time: for the loss, and once more for the
        rows. Every rank must call this.
        """
        training = self._training
        losses: list[float | None] = []
        seconds: list[float] = []
        count = max(ranks.gather(len(update.micro)))
        own = [*update.micro, *[None] * (count - len(update.micro))]

        def run(micro: MicroBatch | None) -> None:
            if micro is not None:
                started = time.monotonic()
                losses.append(training.loss_again(micro))
                seconds.append(time.monotonic() - started)
                look.seconds = max(seconds)

        def run_for_rows(micro: MicroBatch | None) -> None:
            if micro is not None and look.is_exact:
                forward = partial(training.loss_again, micro)
                self.rows += training.rows_again(forward, micro.batch, micro.moment)

        is_whole = self._each(look, limits, [partial(run, micro) for micro in own])
        if is_whole:
            look.own = mean_loss([loss for loss in losses if loss is not None])
        if look.own is not None and update.own_loss is not None:
            look.is_exact = same_bits(look.own, update.own_loss)
        seconds_of_rows = (update.num_rows + count) * look.seconds
        look.may_search = not ranks.any_rank(not limits.allow(seconds_of_rows))
        if not self._each(look, limits, [partial(run_for_rows, micro) for micro in own]):
            self.rows = []
            look.row_problem = "there was no time to run the batch once more"
        elif look.is_exact:
            self._try(look, lambda: self._take_rows(update, look))

    def _take_rows(self, update: Update, look: _Look) -> None:
        """Take the losses of the rows, if they are those of the step."""
        assert look.own is not None  # it is exact
        if not add_up(self.rows, look.own):
            self.rows = []  # they show a part of the loss only, or none
            self._search_rows(update, look)
            return
        look.row_losses = [row.mean for row in self.rows]
        look.row_weights = [float(len(row.losses)) for row in self.rows]

    def _search_rows(self, update: Update, look: _Look) -> None:
        """Find the losses of the rows by running them one by one, if time allows."""
        num_rows = update.num_rows
        if not look.may_search:
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

    def _find_broken(self, update: Update, look: _Look, limits: SceneLimits) -> None:
        """Find where the numbers of the update stop being finite: by running it again or, without
        the time for that, as they are. Every rank must call this.
        """
        if ranks.any_rank(bool(look.has_ended) or not limits.allow(look.seconds)):
            look.must_read_numbers = True
            return
        self._try(look, lambda: self._find_where_it_breaks(update, look, limits))

    def _find_where_it_breaks(self, update: Update, look: _Look, limits: SceneLimits) -> None:
        for micro in update.micro:
            found = find_broken(self._training, micro, limits)
            look.must_read_numbers = found is NO_ROOM
            look.broken = None if found is NO_ROOM else found
            if found is not None:
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

    def _shared_steps(
        self, update: Update, recent: Sequence[Update], look: _Look, limits: SceneLimits
    ) -> list[int]:
        """Return the steps whose batches are run at the current state: the same on every rank."""
        usable = []
        if look.is_exact:
            earlier = [other for other in recent if other.step < update.step and other.micro]
            usable = [
                other.step
                for other in earlier
                if other.own_loss is not None and self._training.can_repeat(other.micro[0])
            ]
        of_ranks: list[Any] = ranks.gather([usable, look.seconds, limits.seconds_left])
        slowest = max(float(seconds) for _, seconds, _ in of_ranks)
        if not slowest:
            return []
        shared = sorted(set(usable).intersection(*(steps for steps, _, _ in of_ranks)))
        affordable = int(min(float(left) for _, _, left in of_ranks) / slowest)
        count = max(0, min(_NUM_BATCHES, affordable))
        if not count or not shared:
            return []
        # The latest ones may already have been trained on at a bad state, so spread them.
        return shared[:: max(1, len(shared) // count)][:count]

    def _run_others(
        self, recent: Sequence[Update], steps: Sequence[int], look: _Look, limits: SceneLimits
    ) -> None:
        """Run the first micro-batches of some earlier steps at the current weights. Every rank must
        call this.
        """

        def run(other: Update) -> None:
            first = other.micro[0]
            now = self._training.loss_again(first)
            then = mean_loss(first.seen_losses())
            if now is not None and then is not None:
                look.others[str(other.step)] = (then, now)

        others = [other for other in recent if other.step in steps]
        self._each(look, limits, [partial(run, other) for other in others])

    def _read_worst_rows(self, recent: Sequence[Update], update: Update, look: _Look) -> None:
        """Read the worst rows of this rank: the text around their worst tokens, and its sign."""
        order = sorted(range(len(self.rows)), key=lambda row: -finite(self.rows[row].mean))
        inputs = [tokens for micro in update.micro for tokens in token_rows(micro.batch)]
        reads_targets = self.has_tokens and are_targets_tokens(self.rows, inputs)
        found: list[Found] = []
        for row in order[:NUM_ROWS]:
            name = self.names[row] if row < len(self.names) else ("", -1)
            to_read = inputs[row][:WINDOW] if row < len(inputs) else []
            worst: tuple[tuple[str, float], ...] = ()
            if reads_targets:
                to_read = around_worst(self.rows[row])
                worst = self.reader.worst_tokens(self.rows[row])
            found.append((name, self.rows[row].mean, to_read, worst))
        oddities = self.reader.oddities(recent, update)
        look.num_odd_rows = len(oddities)
        look.suspects = self.reader.suspects(recent, update, found, oddities)


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
    except Exception as error:  # a single row may be what a model cannot take
        if is_out_of_memory(error) or is_from_a_signal(error):
            raise
        return RowSearch(problem=f"a part of the batch cannot be run ({error})"[:200])
