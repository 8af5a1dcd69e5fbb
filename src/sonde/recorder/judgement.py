"""Judge updates: the event that one begins, the reaction to it, and when it is written down.

On the CPU, an update is judged before the optimizer moves. On a device this would mean to wait for
it, so there an update is judged when its loss has arrived, during the next one; `on_event="skip"`,
`"stop"` and `"heal"` always judge in time.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from sonde import ranks
from sonde.errors import TrainingStopped
from sonde.forensics.precursors import what_preceded
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.log.device import Copy
from sonde.recorder.alerting import EventAlerts
from sonde.recorder.characters import RowCharacters
from sonde.recorder.first_verdict import write_first_verdict
from sonde.recorder.guard import PASSES, Guard
from sonde.recorder.held_batches import HeldUpdates
from sonde.recorder.hooks import NOBODY
from sonde.recorder.keeper import Keeper
from sonde.recorder.numbers import Table, exchange, read_numbers
from sonde.recorder.outliers import OutlierLook
from sonde.recorder.quiet import QuietLook
from sonde.recorder.scene import Scene
from sonde.recorder.training import Training
from sonde.recorder.untold import UntoldEvents
from sonde.recorder.update import Loss, Update
from sonde.spikes.detectors import Event
from sonde.spikes.step_entry import StepEntry

if TYPE_CHECKING:
    from sonde.recorder.healing import Healing

_NUM_CALM: Final = 24
"""After this many updates the training is under way, but no event can have been detected yet."""
_logger = logging.getLogger("sonde")


class Judgement:
    """Judges the updates of one training, one after another."""

    def __init__(
        self,
        training: Training,
        keeper: Keeper,
        guard: Guard,
        on_event: str,
        alerts: EventAlerts,
    ) -> None:
        """`keeper` receives the records, `alerts` tells others."""
        self._alerts = alerts
        self.on_event = on_event
        self._training = training
        self._run = training.run
        self._options = training.options
        self._keeper = keeper
        self._guard = guard
        self._scene = Scene(training)
        self._outliers = OutlierLook(training.run, self._scene.reader, alerts)
        decode = training.decode
        self.spikes = self._run.spikes(
            settings=self._options.spikes,
            investigate=self._on_event_begun,
            characters=decode and RowCharacters(decode, guard, lambda: self._judged),
        )
        """The spike recorder."""
        training.named["sonde"] = self.spikes
        self.healing: Healing | None = None
        """Self-healing, if enabled."""
        if on_event == "heal":
            from sonde.recorder import healing  # it loads much that nothing else needs

            self.healing = healing.Healing(self._run, self._options.heal)
            training.named["healing"] = self.healing.watch
        self._recent = HeldUpdates(self._options.recent_steps)
        self.quiet = QuietLook(self._run, guard, self.spikes, alerts, keeper.memory)
        """Looks for failures without a jump."""
        keeper.on_written = self.quiet.look
        self._late: deque[tuple[Update, Table]] = deque()
        """Updates whose numbers have not arrived yet, with what will hold them."""
        self._judged: Update | None = None
        """The update that is being judged."""
        self.is_alone = ranks.world_size() == 1
        """Whether there is no other rank."""
        self._highest_rate = 0.0
        """The highest learning rate of any group, before the steps that are held."""
        self._left_rates: Sequence[float] = ()
        """The rates of the last step that is held no longer."""
        self._untold = UntoldEvents()
        self._num_skipped = 0
        self._num_done = 0
        self.own_seconds = 0.0
        """How long looks at scenes took so far."""

    @property
    def recent(self) -> Sequence[Update]:
        """The last updates, oldest first."""
        return list(self._recent)

    @property
    def must_know_in_time(self) -> bool:
        """Whether an update must be judged before the optimizer moves."""
        return self.on_event != "record"

    def on_any_rank(self, is_so: bool) -> bool:
        """Return whether something is so on any rank. Every rank must call this."""
        return is_so if self.is_alone else ranks.any_rank(is_so)

    def judge(self, update: Update, losses: Sequence[Loss], norm: Any) -> bool:
        """Judge an update. Returns True if its gradients must be dropped. Every rank must call
        this.
        """
        # The common case, at a third of the cost.
        if self.is_alone and len(losses) == 1 and type(losses[0]) is float:
            update.loss = losses[0]
            update.own_loss = losses[0]
            update.grad_norm = None if norm is None else float(norm)
            self._judge_known(update)
            return update.skipped is not None
        if self.is_alone and not losses:
            return False
        table = exchange(losses, update.num_tokens, norm, in_time=self.must_know_in_time)
        self._late.append((update, table))
        self.drain(wait=False)
        return update.skipped is not None

    def drain(self, *, wait: bool) -> None:
        """Judge the updates whose numbers have arrived."""
        while self._late:
            update, table = self._late[0]
            if isinstance(table, Copy) and not wait and not self._may_read(table):
                return
            self._late.popleft()
            update.loss, update.own_loss, update.num_tokens, update.grad_norm = read_numbers(table)
            self._judge_known(update)
            if update.is_over:
                self._keeper.put(update)

    def _may_read(self, table: Copy) -> bool:
        """Return whether numbers on their way from a device are read now: when they have arrived.
        Several ranks must read in the same step, so they read one update late.
        """
        return table.is_ready() if self.is_alone else len(self._late) > 1

    def done(self, update: Update) -> None:
        """Finish an update: write it down now, or when its loss has arrived."""
        update.is_over = True
        leaving = self._recent.append(update)
        if leaving is not None and leaving.rates != self._left_rates:
            self._note_leaving(leaving.rates)
        self._num_done += 1
        if self._num_done == _NUM_CALM:
            self._scene.prepare()
        if self._late and any(waiting is update for waiting, _ in self._late):
            return  # it is written when its loss has arrived
        self._keeper.put(update)
        if self.quiet.found:
            self.quiet.tell_found()

    def _note_leaving(self, rates: Sequence[float]) -> None:
        """Note the rates of a step that is held no longer, if they are others than before."""
        self._left_rates = rates
        self._highest_rate = max(self._highest_rate, *rates, 0.0)

    def flush(self) -> None:
        """Judge and write everything that is pending, and tell what was found on the way."""
        self.drain(wait=True)
        self._keeper.flush()
        self.quiet.tell_found()

    def go_back(self, num_updates: int) -> None:
        """Discard updates after `num_updates`, because the training went back."""
        self.quiet.start_over()
        self._recent.go_back(num_updates)

    def without_left_out(
        self, batches: Iterable[Any], names_of: Callable[[Any], Any]
    ) -> Iterator[Any]:
        """Yield batches without the rows that healing left out."""
        return iter(batches) if self.healing is None else self.healing.kept(batches, names_of)

    def _judge_known(self, update: Update) -> None:
        """Judge an update whose numbers are known."""
        if update.loss is None:
            return
        self._judged = update
        rows = update.rows()
        # Without row losses, names are read at an event only: the function itself is passed.
        names = update.names if rows is None else update.names()
        event = self.spikes.observe(
            update.step,
            update.loss,
            lr=update.lr,
            grad_norm=update.grad_norm,
            sample_ids=names,
            sample_losses=None if rows is None else rows.losses,
            token_counts=None if rows is None else rows.counts,
            rng=update.random_numbers,
        )
        self._judged = None
        untold = self._untold
        if untold.is_holding or update.loss > untold.highest_loss:
            lasting = untold.note(update.step, update.loss, self.spikes.is_bad(update.step))
            if lasting is not None:
                self._tell_lasting(lasting, update)
        if rows is not None and event is None:
            found = self.spikes.sample_event
            if found is not None:
                held = (*self._recent, update)
                self._look(found.step, lambda: self._outliers.look(found, held))
        if self.on_event != "record":
            self._react(update, event)

    def _react(self, update: Update, event: Event | None) -> None:
        """Do what `on_event` asks for."""
        if update.is_applied:
            return
        if self.healing is not None:
            self.healing.judge(update)
        is_bad = self.on_event == "skip" and self.spikes.is_bad(update.step)
        self._num_skipped = self._num_skipped + 1 if is_bad else 0
        if is_bad and self._num_skipped <= self._options.max_skipped:
            update.skipped = _what_jumped(update)
            _logger.warning("step %d: this update is skipped", update.step)
        if self.on_event == "stop" and event is not None:
            update.skipped = "the run was stopped"
            self._keeper.put(update)
            raise TrainingStopped(
                f"{_what_jumped(update)} at step {update.step}: {event.metric.replace('_', ' ')}"
                f" {event.value:.4g}, and {event.baseline:.4g} was expected",
                cause='on_event="stop" was asked for; the update was not made',
                hint=(
                    f"`sonde diagnose {self._run.directory} --step {update.step} --again` says why"
                ),
            )

    def _on_event_begun(self, event: Event, entry: StepEntry) -> None:
        """Handle the beginning of an event: keep the state before it, look around, and write the
        first verdict.
        """
        update = self._judged
        if update is not None:
            self._look(update.step, lambda: self._look_into(event, entry, update))

    def _look(self, step: int, look: Callable[[], None]) -> None:
        """Look at a scene, unseen by the hooks. The event itself is recorded whatever happens
        there, and the time is not counted as that of the training.
        """
        started = time.perf_counter()
        try:
            with self._training.hooks.observed_by(NOBODY):
                look()
        except PASSES:
            raise
        except BaseException as error:  # noqa: BLE001  the user's model and functions run here
            self._guard.catch(f"the scene of step {step} cannot be looked into", error)
        finally:
            self.own_seconds += time.perf_counter() - started

    def _look_into(self, event: Event, entry: StepEntry | None, update: Update) -> None:
        """Look into an event and write the first verdict. `entry` receives what is found at its
        beginning; it is None if the event has lasted for some steps, which is told in any case.
        """
        scene = self._scene
        started = time.time()
        has_begun_here = entry is not None
        if has_begun_here and not update.is_applied and not update.has_other_moved:
            self._keeper.keep_state(update.step - 1, before=update)
        if not self._options.scene_seconds:
            return
        found = scene.investigate(update, list(self._recent), event)
        found = replace(
            found,
            resume=self._training.resume_report,
            highest_rate=self._highest_rate,
            first_loss=self._untold.first_loss,
            preceded=what_preceded(self._keeper.vitals_so_far(), update.step),
        )
        if scene.rows and entry is not None:
            entry.sample_ids = list(scene.names)
            entry.sample_losses = [row.mean for row in scene.rows]
            if scene.has_tokens:
                entry.token_losses = [row.losses for row in scene.rows]
                entry.token_counts = [len(row.losses) for row in scene.rows]
        if ranks.rank() == 0:
            metric = event.metric.replace("_", " ")
            headline = f"{metric} {event.value:.4g}, expected {event.baseline:.4g}"
            verdict = write_first_verdict(
                self._run,
                headline,
                update,
                found,
                started,
                event=asdict(event),
                may_be_noise=(
                    self._may_pass(event, update, found)
                    if has_begun_here
                    else self._untold.may_stay(update, self._recent)
                ),
            )
            if verdict is not None:
                self._alerts.event(event, verdict)
            elif has_begun_here:
                self._untold.hold(event, update.step)

    def _may_pass(self, event: Event, update: Update, scene: SceneEvidence) -> bool:
        """Return whether there may be nothing to say of an event now."""
        if self.on_event != "record":
            return False
        if self._untold.may_pass(event, scene, update, self._recent):
            return True
        is_finite_loss = event.metric == "loss" and math.isfinite(event.value)
        return is_finite_loss and self._has_usual_rows(event, update)

    def _tell_lasting(self, event: Event, update: Update) -> None:
        """Tell of an event that nothing was said of: the loss has stayed high since."""
        if self.is_alone:
            lasting = replace(event, value=update.loss or event.value)
            self._look(update.step, lambda: self._look_into(lasting, None, update))
        else:  # only the first rank knows of it, and a look needs all of them
            _logger.warning(
                "step %d: the loss has stayed high since step %d", update.step, event.first_step
            )

    def _has_usual_rows(self, event: Event, update: Update) -> bool:
        """Return whether no row is above what rows of its length have now and then. A few rows are
        high, as happens; if most are, something is wrong with the batch.
        """
        rows = update.rows() if self._options.spikes.sample_risk is not None else None
        if rows is None or self.spikes.sample_event is not None:
            return False
        losses = sorted(float(loss) for loss in rows.losses)
        return losses[len(losses) // 2] < 2 * abs(event.baseline)


def _what_jumped(update: Update) -> str:
    """Say what is wrong with an update."""
    if update.grad_norm is not None and not math.isfinite(update.grad_norm):
        return "the gradients are not finite"
    return "the loss jumped"
