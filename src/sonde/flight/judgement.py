"""Judge updates: their numbers over all ranks, the event that one begins, the reaction to it, and the record of each update.

One small exchange per update brings the numbers of the ranks together (none in a single process). Every rank gets the
same numbers, so every rank judges alike, and events need no further agreement.

On the CPU, an update is judged before the optimizer step. On a device this would require a synchronization, so there an
update is judged when its loss has arrived, during the next one; `on_event="skip"` and `"stop"` always judge in time.

With `on_event="heal"`, the loop rolls back by itself when the loss jumps and does not recover, or is not finite.
Detection and decisions use the same code as `sonde train --heal` (heal/); the verdict is that of the scene. The update
that triggers it is not applied. At its end, the training returns to a kept state: model, optimizer, named objects, and
generators.

If the loop takes its batches from `flight.batches(loader)`, the loader goes back too, provided it has a `state_dict`;
otherwise the data continues where it is. In both cases, the rows to blame are removed from all later batches. A loop
over its own loader continues with the next batch; the samples to blame are on the run's skip list, which
`sonde.without` applies at the next start.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from sonde import ranks
from sonde.errors import SondeError, TrainingStopped
from sonde.flight.batch_tree import named_rows, num_rows, without_rows
from sonde.flight.keeper import Keeper
from sonde.flight.ring import Loss, Update
from sonde.flight.samples import skipped
from sonde.flight.scene import Scene, experiments, judge, judge_rows
from sonde.flight.training import Training
from sonde.forensics.verdict import UNKNOWN, Cause, Verdict, read_verdict, write_verdict
from sonde.heal.decision import ENDED, Act, Call, Heal, read_history, told_of_act, write_event
from sonde.heal.supervisor import HealWatch, mend
from sonde.log.device import Copy, begin_copy
from sonde.run import Run
from sonde.spikes.detectors import Event
from sonde.spikes.sample_watch import SampleEvent
from sonde.spikes.spike_records import StepEntry

_NUM_CALM: Final = 24
"""After this many updates the training is under way, but no event can have been detected yet."""

_logger = logging.getLogger("sonde")


Table: TypeAlias = list[list[float]] | Copy
"""The mean loss, tokens and gradient norm of every rank; or their pending copy from a device."""


def numbers_of(table: Table) -> tuple[float, float, int, float | None]:
    """Return the numbers of an update, waiting for them if necessary.

    They are the mean loss over the ranks, the loss of this rank, the number of tokens over all ranks, and the largest
    gradient norm of any rank, which is the same on all unless something is wrong.
    """
    rows: Any = table.value() if isinstance(table, Copy) else table
    loss = math.fsum(row[0] for row in rows) / len(rows)
    norms = [norm for _, _, norm in rows if not math.isnan(norm)]
    return loss, rows[ranks.rank()][0], int(sum(row[1] for row in rows)), max(norms, default=None)


def exchange(losses: Sequence[Loss], num_tokens: int, norm: Any, *, in_time: bool) -> Table:
    """Exchange the numbers of an update between ranks. Every rank must call this."""
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    first, device = losses[0], ranks.communication_device()
    mean: Any
    if is_late := isinstance(first, Tensor) and not in_time:
        device = first.device
        mean = torch.stack([torch.as_tensor(one).double().reshape(()) for one in losses]).mean()
    else:
        mean = sum(map(float, losses)) / len(losses)
    values = [mean, num_tokens, math.nan if norm is None else norm]
    row = torch.stack([torch.as_tensor(one, dtype=torch.float64, device=device).reshape(()) for one in values])
    table = row[None]
    if ranks.world_size() > 1:
        rows = [torch.empty_like(row) for _ in range(ranks.world_size())]
        dist.all_gather(rows, row)
        table = torch.stack(rows)
    return begin_copy(table) if is_late else table.tolist()


class Judgement:
    """Judges the updates of one training, one after another."""

    def __init__(self, training: Training, keeper: Keeper) -> None:
        """`keeper` receives the records. The watchers become part of the training's state."""
        self._run = run = training.run
        self._settings = settings = training.settings
        self._keeper = keeper
        self._scene = Scene(training)
        self.spikes = run.spikes(settings=settings.spikes, investigate=self._investigate)
        """The spike recorder."""
        training.named["sonde"] = self.spikes
        self.healing = Healing(run, settings.heal) if settings.on_event == "heal" else None
        """Self-healing, if enabled."""
        if self.healing is not None:
            training.named["healing"] = self.healing.watch
        self._ring: deque[Update] = deque(maxlen=settings.ring_steps)
        self._late: deque[tuple[Update, Table]] = deque()
        self._judged: Update | None = None
        self._is_alone = ranks.world_size() == 1
        self._num_skipped = self._num_done = 0
        self._has_failed = False

    def judge(self, update: Update, losses: Sequence[Loss], norm: Any) -> bool:
        """Judge an update whose loss is known. Returns True if its gradients must be dropped. Every rank must call this."""
        if self._is_alone and type(losses[0]) is float and len(losses) == 1:  # the common case, at a third of the cost
            update.loss = update.own_loss = losses[0]
            norm = None if norm is None else float(norm)
            update.grad_norm = None if norm != norm else norm
            self._take(update)
            return update.skipped is not None
        table = exchange(losses, update.num_tokens, norm, in_time=self._settings.on_event != "record")
        self._late.append((update, table))
        self.drain(wait=False)
        return update.skipped is not None

    def drain(self, *, wait: bool) -> None:
        """Judge the updates whose numbers have arrived."""
        while self._late:
            update, table = self._late[0]
            if isinstance(table, Copy) and not wait and not table.is_ready():
                return
            self._late.popleft()
            update.loss, update.own_loss, update.num_tokens, update.grad_norm = numbers_of(table)
            self._take(update)
            if update.is_done:
                self._keeper.put(update)

    def done(self, update: Update, *, has_loss: bool) -> None:
        """Finish an update: record it now, or when its loss has arrived."""
        update.is_done = True
        self._ring.append(update)
        self._num_done += 1
        if self._num_done == _NUM_CALM:
            self._scene.prepare()
        if update.loss is not None or not has_loss:
            self._keeper.put(update)

    def go_back(self, num_updates: int) -> None:
        """Discard updates after `num_updates`, because the training went back."""
        self._ring = deque([one for one in self._ring if one.step <= num_updates], maxlen=self._settings.ring_steps)

    def _take(self, update: Update) -> None:
        """Judge an update whose numbers are available."""
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
            self._keeper.put(update)
            raise TrainingStopped(
                f"the loss jumped at step {update.step}: {update.loss:.4g}, and {event.baseline:.4g} was expected",
                cause='on_event="stop" was asked for; the update was not made',
                hint=f"`sonde diagnose {self._run.directory} --step {update.step} --again` says why",
            )

    def _investigate(self, event: Event, entry: StepEntry) -> None:
        """Handle the beginning of an event: keep the state before it, investigate, and write the first verdict. Never raises."""
        update = self._judged
        if update is not None:
            self._attempt(update.step, lambda: self._look_into(event, entry, update))

    def _attempt(self, step: int, look: Callable[[], None]) -> None:
        """Run `look`, catching any error from the user's model or decoder: the event itself is recorded in any case."""
        try:
            look()
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("the scene of step %d cannot be looked into; training goes on", step, exc_info=True)

    def _look_into(self, event: Event, entry: StepEntry, update: Update) -> None:
        scene, started = self._scene, time.time()
        if not update.is_moved:
            self._keeper.keep_state(update.step - 1, before=update)
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
            self._tell(
                jump, facts.step, judge(facts), started, experiments=tuple(experiments(facts)), event=asdict(event)
            )

    def _look_at(self, found: SampleEvent, update: Update) -> None:
        """Read outlying samples and write a first verdict on them. Each rank does this for its own."""
        started = time.time()
        judged = next((one for one in (update, *self._ring) if one.step == found.step), None)
        rows = [] if judged is None else self._scene.read_rows(judged, list(self._ring), found.rows)
        if rows:
            jump = f"a sample's loss is {rows[0].loss:.4g}, samples of its length have {found.expected[0]:.4g}"
            causes = judge_rows(found.step, rows, found.expected, found.z)
            self._tell(jump, found.step, causes, started)

    def _tell(self, jump: str, step: int, causes: Sequence[Cause], started: float, **more: Any) -> None:
        """Write a verdict into the run and log it in one line."""
        now = time.time()
        told = {"run_id": self._run.manifest.run_id, "time": now, "seconds": now - started, **more}
        verdict = Verdict(step=step, causes=tuple(causes), **told)
        path = self._run.directory / write_verdict(self._run.layout.root, verdict).relative_to(self._run.layout.root)
        first = verdict.causes[0]
        cause = first.title
        if first.suspects and first.suspects[0].text:
            cause = f"{cause.removesuffix('.')}: {first.suspects[0].text[:80]!r}"
        _logger.warning("step %d: %s. %s (%.1f s; %s)", verdict.step, jump, cause, verdict.seconds, path)


def _rows(update: Update) -> dict[str, Any]:
    """Return the losses of single rows, if all micro-batches have them."""
    known = [one.rows for one in update.micro if one.rows is not None]
    if len(known) < len(update.micro):
        return {}
    losses, counts = known[0]
    if len(known) > 1:
        losses, counts = (torch.cat([torch.as_tensor(one) for one in parts]) for parts in zip(*known, strict=True))
    return {"sample_losses": losses, "token_counts": counts}


class Healing:
    """Watches the updates of one training and decides what to do about anomalies."""

    def __init__(self, run: Run, heal: Heal) -> None:
        """Complete what an earlier start decided but did not carry out; its kept states are those to resume from."""
        self._run = run
        self._heal = replace(heal, diagnose=heal.diagnose or _scene)
        self.watch = HealWatch(heal)
        """The watch, which is part of every kept state."""
        self.call: Call | None = None
        """The anomaly reported at the current update, if any."""
        if run.rank == 0 and not run.is_replay:
            mend(run.layout.root, self._heal, is_ours=True)
        self.left_out: frozenset[tuple[str, int]] = frozenset()
        """The samples that are left out, by dataset."""
        self._read_skip_list()

    def judge(self, update: Update) -> None:
        """Process the loss of an update; an update that reports an anomaly is not applied."""
        assert update.loss is not None
        self.call = self.watch.judge(update.step, update.loss)
        if self.call is not None:
            update.skipped = "the training goes back"

    def act(self) -> Act:
        """Decide about the anomaly, record the decision and roll back the run's files. Flush the run first. Every rank must call this."""
        call, self.call = self.call, None
        found = None
        if self._run.rank == 0 and call is not None:
            write_event(self._run.layout.root, "called", call=call)
            mend(self._run.layout.root, self._heal, is_ours=True)
            found = asdict(read_history(self._run.layout.root).acts[-1])
        act = msgspec.convert(ranks.gather(found)[0], Act)
        if act.kind == "stop":
            raise TrainingStopped(
                f"{ENDED}: {act.why}", cause=" ".join(told_of_act(act)[:2]), hint=" ".join(act.advice)
            )
        self._read_skip_list()
        _logger.warning("%s", " ".join(told_of_act(act)))
        return act

    def kept(self, batches: Iterable[Any], names_of: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield batches without the rows that are left out; batches with no rows left on some rank are skipped. Every rank must iterate."""
        for batch in batches:
            if not self.left_out:
                yield batch
                continue
            keep = [row for row, name in enumerate(named_rows(names_of(batch), batch)) if name not in self.left_out]
            count = num_rows(batch)
            if not ranks.any_rank(count > 0 and not keep):
                yield batch if len(keep) == count else without_rows(batch, keep)

    def _read_skip_list(self) -> None:
        skip = skipped(self._run.layout)
        self.left_out = frozenset((name, one) for name in skip.entries for one in skip.samples(name).tolist())


def _scene(run: Path, step: int) -> Verdict | None:
    """Return the verdict of the scene of a step. If the state is bad, go back before it, whatever the cause."""
    try:
        verdict = read_verdict(run, step)
    except SondeError:
        return None
    first = verdict.causes[0]
    if first.cause == UNKNOWN and first.bad_checkpoint is not None:
        first = replace(first, cause="bad_state", blames="tensor")
    return replace(verdict, causes=(first, *verdict.causes[1:]))
