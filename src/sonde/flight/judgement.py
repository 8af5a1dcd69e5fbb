"""Judging updates: their numbers over all ranks, the event that one begins, what is done about it, and the record of each.

On the CPU an update is judged before the optimiser moves. On a device that would wait for it, so there an update is judged when its loss has
arrived, during the next one; `on_event="skip"` and `"stop"` judge in time everywhere.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, final

import torch

from sonde import ranks
from sonde.errors import TrainingStopped
from sonde.flight.first_verdict import experiments, judge, judge_rows
from sonde.flight.healing import Healing
from sonde.flight.keeper import Keeper
from sonde.flight.over_ranks import Numbers, Outcome, exchange
from sonde.flight.ring import Loss, Update
from sonde.flight.scene import Scene
from sonde.flight.settings import FlightSettings
from sonde.forensics.verdict import Cause, Experiment, Verdict, write_verdict
from sonde.run import Run
from sonde.spikes.detectors import Event
from sonde.spikes.sample_watch import SampleEvent
from sonde.spikes.spike_records import StepEntry

_NUM_CALM: Final = 24
"""After this many updates a training has begun in earnest, and no event can have been seen."""

_logger = logging.getLogger("sonde")


@final
class Judgement:
    """Judges the updates of one training, one after another."""

    def __init__(self, run: Run, settings: FlightSettings) -> None:
        self._run = run
        self._settings = settings
        self.spikes = run.spikes(settings=settings.spikes, investigate=self._investigate)
        """Watches the numbers."""
        self.scene: Scene | None = None
        """Looks into events; None: nobody does."""
        self.keeper: Keeper | None = None
        """Takes the records."""
        self.healing = Healing(run, settings.heal) if settings.on_event == "heal" else None
        """Goes back by itself, where that is wanted."""
        self._ring: deque[Update] = deque(maxlen=settings.ring_steps)
        self._late: deque[tuple[Update, Outcome]] = deque()
        self._judged: Update | None = None
        self._is_alone = ranks.world_size() == 1
        self._num_skipped = self._num_done = 0
        self._has_failed = False

    def judge(self, update: Update, losses: Sequence[Loss], norm: Any) -> bool:
        """Judge an update whose loss is known; True: its gradients are to be dropped. Every rank must call it."""
        if self._is_alone and type(losses[0]) is float and len(losses) == 1:  # the usual case, at a third of the cost
            update.loss = update.own_loss = losses[0]
            norm = None if norm is None else float(norm)
            update.grad_norm = None if norm != norm else norm
            self._take(update)
            return update.skipped is not None
        outcome = exchange(losses, update.num_tokens, norm, in_time=self._settings.on_event != "record")
        if self._late or not outcome.is_ready():
            self._late.append((update, outcome))
            self.drain(wait=False)
        else:
            self._arrived(update, outcome.numbers())
        return update.skipped is not None

    def drain(self, *, wait: bool) -> None:
        """Judge the updates whose numbers have arrived."""
        while self._late and (wait or self._late[0][1].is_ready()):
            update, outcome = self._late.popleft()
            self._arrived(update, outcome.numbers())
            if update.is_done:
                self._put(update)

    def done(self, update: Update, *, has_loss: bool) -> None:
        """The update is over: it is recorded, at once or when its loss has arrived."""
        update.is_done = True
        self._ring.append(update)
        self._num_done += 1
        if self._num_done == _NUM_CALM and self.scene is not None:
            self.scene.prepare()
        if update.loss is not None or not has_loss:
            self._put(update)

    def stateful(self) -> dict[str, Any]:
        """What belongs to the training's state."""
        return {"sonde": self.spikes} | ({} if self.healing is None else {"healing": self.healing.watch})

    def go_back(self, num_updates: int) -> None:
        """The training went back: what came after is no measure of anything."""
        self._ring = deque([one for one in self._ring if one.step <= num_updates], maxlen=self._settings.ring_steps)

    def _arrived(self, update: Update, numbers: Numbers) -> None:
        update.loss, update.own_loss, update.num_tokens, update.grad_norm = numbers
        self._take(update)

    def _take(self, update: Update) -> None:
        """The numbers of an update are there: judge it by them."""
        self._judged = update
        rows = {} if update.micro[0].rows is None else _rows(update)
        event = self.spikes.observe(
            update.step,
            update.loss,
            lr=update.lr,
            grad_norm=update.grad_norm,
            sample_ids=update.names() if rows else update.names,
            rng=update.random_numbers,
            **rows,
        )
        self._judged = None
        if rows and event is None and (found := self.spikes.sample_event) is not None and found.is_worth_a_look:
            self._attempt(found.step, lambda: self._look_at(found, update))
        on_event = self._settings.on_event
        if on_event == "record":
            return
        if self.healing is not None:
            self.healing.judge(update)
        if on_event == "skip" and not update.is_moved and self.spikes.is_bad(update.step):
            self._num_skipped += 1
            if self._num_skipped <= self._settings.max_skipped:
                update.skipped = "the loss jumped"
                _logger.warning("step %d: this update is skipped", update.step)
        else:
            self._num_skipped = 0
        if on_event == "stop" and event is not None:
            update.skipped = "the run was stopped"
            self._put(update)
            raise TrainingStopped(
                f"the loss jumped at step {update.step}: {update.loss:.4g}, and {event.baseline:.4g} was expected",
                cause='on_event="stop" was asked for; the update was not made',
                hint=f"`sonde diagnose {self._run.directory} --step {update.step} --again` says why",
            )

    def _put(self, update: Update) -> None:
        if self.keeper is not None:
            self.keeper.put(update)

    def _investigate(self, event: Event, entry: StepEntry) -> None:
        """An event begins: keep the state before it, look into it at the scene, write the first verdict. Never raises."""
        update = self._judged
        if update is not None:
            self._attempt(update.step, lambda: self._look_into(event, entry, update))

    def _attempt(self, step: int, look: Callable[[], None]) -> None:
        """Whatever a model or a decoder of the user's may raise: the event itself is recorded in any case."""
        try:
            look()
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("the scene of step %d cannot be looked into; training goes on", step, exc_info=True)

    def _look_into(self, event: Event, entry: StepEntry, update: Update) -> None:
        scene, keeper, started = self.scene, self.keeper, time.time()
        if scene is None or keeper is None:
            return
        if not update.is_moved:
            keeper.keep_state(update.step - 1, before=update)
        if not self._settings.scene_seconds:
            return
        normal = event.baseline if event.metric == "loss" else math.nan
        facts = scene.investigate(update, list(self._ring), normal)
        if scene.rows:
            entry.sample_ids = list(scene.names)
            entry.sample_losses = [row.mean for row in scene.rows]
            entry.token_losses = [row.losses for row in scene.rows]
            entry.token_counts = [len(row.losses) for row in scene.rows]
        if ranks.rank() == 0:
            jump = f"{event.metric.replace('_', ' ')} {event.value:.4g}, expected {event.baseline:.4g}"
            self._tell(jump, self._verdict(facts.step, judge(facts), started, experiments(facts), asdict(event)))

    def _look_at(self, found: SampleEvent, update: Update) -> None:
        """Single samples stand out: read them, and write a first verdict on them. Each rank does so for its own."""
        scene, started = self.scene, time.time()
        judged = next((one for one in (update, *self._ring) if one.step == found.step), None)
        rows = [] if scene is None or judged is None else scene.read_rows(judged, list(self._ring), found.rows)
        if rows:
            jump = f"a sample's loss is {rows[0].loss:.4g}, samples of its length have {found.expected[0]:.4g}"
            causes = judge_rows(found.step, rows, found.expected, found.z)
            self._tell(jump, self._verdict(found.step, causes, started))

    def _verdict(
        self,
        step: int,
        causes: Sequence[Cause],
        started: float,
        done: Sequence[Experiment] = (),
        event: Mapping[str, Any] | None = None,
    ) -> Verdict:
        now = time.time()
        return Verdict(
            run_id=self._run.manifest.run_id,
            step=step,
            causes=tuple(causes),
            experiments=tuple(done),
            event=event,
            time=now,
            seconds=now - started,
        )

    def _tell(self, jump: str, verdict: Verdict) -> None:
        """Write a verdict into the run, and say it on one line."""
        path = self._run.directory / write_verdict(self._run.layout.root, verdict).relative_to(self._run.layout.root)
        first = verdict.causes[0]
        what = f": {first.suspects[0].text[:80]!r}" if first.suspects and first.suspects[0].text else ""
        _logger.warning("step %d: %s. %s%s (%.1f s; %s)", verdict.step, jump, first.title, what, verdict.seconds, path)


def _rows(update: Update) -> dict[str, Any]:
    """The losses of single rows, where all micro-batches have them."""
    known = [one.rows for one in update.micro if one.rows is not None]
    if len(known) < len(update.micro):
        return {}
    losses, counts = known[0]
    if len(known) > 1:
        losses, counts = (torch.cat([torch.as_tensor(one) for one in parts]) for parts in zip(*known, strict=True))
    return {"sample_losses": losses, "token_counts": counts}
