"""`Trainer`: epochs of updates, with evaluation, checkpoints, metrics and callbacks, until a stop condition is met.

    trainer = Trainer(task, data, optimizer, run=run, schedule=Schedule(peak_lr=5e-4, num_warmup_updates=400))
    reason = trainer.train(stop=StopWhen(max_updates=10_000), callbacks=[…])

    resume from the newest valid checkpoint, if there is one
    while not stopped:
        for each update of the epoch:
            take update_freq micro-batches                    train.data_time
            forward, backward, step                           train.fp_time, train.bp_time, train.grad_time
            every log_interval updates: log the inner metrics and reset them
            evaluate if due, tell the callbacks that save and those that log, then save if due
        the last line again, at the end of the epoch
    evaluate, save

A stop evaluates and saves, whether a condition was met or a callback asked; after SIGTERM and Ctrl-C it only saves, for whoever sends
them is in a hurry; and it does neither when a callback gives the state up (`Context.ask_to_give_up`). Saving goes on in the background (saving.py); what a checkpoint holds is in state.py. A save that is due at an epoch's last
update waits for the end of the epoch, a moment later, so that no checkpoint stands between the two.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from typing_extensions import Unpack

from sonde import ranks
from sonde.callbacks.base import Callback, Context, Order
from sonde.callbacks.dispatch import Dispatcher
from sonde.callbacks.spikes import SpikeCallback
from sonde.log.logger import Logger
from sonde.metrics.stack import aggregate
from sonde.records.append import RecordFile
from sonde.records.layout import EVENTS, STEPS
from sonde.run import Run
from sonde.train import determinism
from sonde.train.any_data import as_training_data, moved
from sonde.train.evaluation import choose_evaluation_data, evaluate, untouched
from sonde.train.finiteness import FinitenessWatch
from sonde.train.gradients import trainable
from sonde.train.parameters import check_parameters, choose_sync, describe_shapes
from sonde.train.rates import AnySchedule, rates_of
from sonde.train.reporting import METADATA, Reporter, Where, show, visible_logging
from sonde.train.saving import Checkpoints
from sonde.train.schedule import Plateau
from sonde.train.settings import TrainerSettings, is_due
from sonde.train.signals import StopSignals
from sonde.train.state import StatesByName, TrainerState
from sonde.train.step import UpdateStep
from sonde.train.stopping import Progress, StopWhen
from sonde.train.task import Task, TrainingData, grouped
from sonde.train.tensorboard import TensorBoardOptions, make_tb_writer


@final
class Trainer:
    """Trains one task on one source of data. The module's docstring says what happens when."""

    def __init__(
        self,
        task: Task,
        data: TrainingData | Iterable[Any],
        optimizer: torch.optim.Optimizer,
        *,
        schedule: AnySchedule,
        run: Run | None = None,
        valid_data: Callable[[], Iterable[Any]] | None = None,
        settings: TrainerSettings | None = None,
        **options: Unpack[TensorBoardOptions],
    ) -> None:
        """`data` may be a torch DataLoader (any_data.py), `schedule` a function or a torch scheduler (rates.py).

        `valid_data()` gives this rank's held-out batches from the start, each time it is called.
        `create_tb_writer=True` makes a `tb_writer` for callbacks to write to.
        """
        self.settings = settings or TrainerSettings()
        self.plateau: Plateau | None = None
        """Set one to lower the rate when an evaluation brings no improvement."""
        self.logger = run.logger if run else Logger([])
        """Where log records go; the run's own stream unless you set another before training."""
        self._task = task
        self._data = as_training_data(data)
        self._optimizer = optimizer
        self._rates = rates_of(schedule, optimizer)
        self._run = run
        self._valid_data = valid_data
        check_parameters(task.model, optimizer)
        self._device = trainable(task.model)[0].device
        self._context = Context(
            rank=ranks.rank(), world_size=ranks.world_size(), run_directory=run.directory if run else None
        )
        self.tb_writer = make_tb_writer(run, **options)
        """A TensorBoard SummaryWriter into the run, on rank 0, if it was asked for; else None."""
        if self.tb_writer is not None:
            self._context.close_at_end(self.tb_writer)
        self.gave_up = False
        """Did the last training end because a callback gave its state up?"""

    @property
    def checkpoint_dir(self) -> Path | str | None:
        """Where the run's checkpoints are; None without a run."""
        return self._run.checkpoint_place if self._run else None

    def train(self, *, stop: StopWhen, callbacks: Sequence[Callback] = (), start_over: bool = False) -> str:
        """Train until a stop condition is met; returns which one, in words.

        A run goes on from its newest valid checkpoint; one that saved some and has none left is refused, unless it shall
        `start_over`. After SIGTERM or Ctrl-C it raises SystemExit (143, 130) once the checkpoint is saved.
        """
        self._rates.plateau = self.plateau
        self._rates.check(stop)
        facts = {"settings": asdict(self.settings), "schedule": self._rates.facts(), "stop": asdict(stop)}
        ranks.check_agreement({**facts, "model": describe_shapes(self._task.model)})
        if self._run is not None and self._run.rank == 0:
            determinism.tell_changes(self._run.layout.record_file(EVENTS, 0))
        self.event(determinism.EVENT, **determinism.describe_determinism())
        with StopSignals() as signals, visible_logging():
            session = _Session(self, stop, self._with_spikes(callbacks), signals)
            reason = session.run(start_over=start_over)
            self.gave_up = not session._at_end
        if signals.received is not None:
            raise SystemExit(signals.exit_code)
        return reason

    def _with_spikes(self, callbacks: Sequence[Callback]) -> Sequence[Callback]:
        """The callbacks, and one that records spikes unless there is one, or no run."""
        if (
            self._run is None
            or not self.settings.watch_spikes
            or any(isinstance(one, SpikeCallback) for one in callbacks)
        ):
            return callbacks
        dataset = getattr(self._data, "dataset", None)
        named = {} if dataset is None else {getattr(dataset, "name", ""): dataset}
        return [*callbacks, SpikeCallback(self._run.spikes(datasets=named), seed=self.settings.seed)]

    def _steps_file(self) -> RecordFile | None:
        return self._run.records(STEPS) if self._run is not None and self._run.rank == 0 else None

    def event(self, name: str, **details: object) -> None:
        """Record that something happened to the run, if there is one."""
        if self._run is not None:
            self._run.event(name, **details)


@final
class _Session:
    """One call of `train`: the parts that live as long as it does."""

    def __init__(self, trainer: Trainer, stop: StopWhen, callbacks: Sequence[Callback], signals: StopSignals) -> None:
        self._trainer = trainer
        self._settings = trainer.settings
        self._context = trainer._context
        self._stop = stop
        self._signals = signals
        self._calls = Dispatcher(
            callbacks,
            on_quarantine=lambda name, moment, error: trainer.event(
                "quarantine", callback=name, moment=moment, error=error
            ),
        )
        self._context._checkpoint_plan = None
        self._calls.call("on_setup", self._context)
        self._checkpoints = Checkpoints(self._context._checkpoint_plan, trainer._run, trainer.settings)
        self._sync = choose_sync(trainer._task.model, trainer.settings)
        self._step = UpdateStep(trainer._task, trainer._optimizer, self._sync, trainer.settings.step)
        self._reporter = Reporter(
            trainer.logger.log, interval=trainer.settings.log_interval, steps=trainer._steps_file()
        )
        parts: dict[str, Any] = {"data": trainer._data, "scale": self._step.scale}
        parts["callbacks"] = StatesByName(callbacks)
        parts |= {"plateau": trainer.plateau} if trainer.plateau is not None else {}
        parts |= {"schedule": trainer._rates.stateful} if trainer._rates.stateful is not None else {}
        self._state = TrainerState(trainer._task.model, trainer._optimizer, parts)
        self._counters = self._state.counters
        self._valid_data = choose_evaluation_data(trainer._valid_data, callbacks)
        self._evaluation_names = sorted({name for callback in callbacks for name in callback.evaluation_tensors})
        self._reason: str | None = None
        self._finite = FinitenessWatch(trainer.settings.max_nonfinite_updates, trainer.event)
        self._at_end: Sequence[str] = ("evaluate", "save")
        self._save_waits = self._is_checked = False
        self._data_epoch: Any = None
        self._clock = time.monotonic()
        self._is_on_device = trainer._device.type != "cpu"

    def run(self, *, start_over: bool) -> str:
        """Resume, train, finish; returns why it stopped."""
        for metric, metadata in METADATA.items():
            self._trainer.logger.metadata(metric, metadata)
        try:
            self._reporter.run_start()
            self._resume(start_over)
            self._trainer._task.model.train()
            self._calls.call("on_run_start", self._context)
            if self._asked("evaluate"):
                self._evaluate()
            self._reason = self._why_stop(stop_wanted=False)
            while self._reason is None:
                self._epoch()
            self._finish()
        except BaseException as error:
            self._calls.call("on_exception", self._context, error)
            raise
        finally:
            self._sync.close()
            self._calls.close(self._context)
            self._checkpoints.wait()
        return self._reason

    def _resume(self, start_over: bool) -> None:
        step = self._checkpoints.restore(self._state, self._trainer._task.model, start_over=start_over)
        if step is None:
            return
        self._context._step = self._counters.num_updates
        self._context._num_epochs_done = self._counters.num_epochs
        self._context._epoch = self._counters.num_epochs + 1
        self._context._metrics = self._state.evaluation.results
        self._trainer.event("resume", step=step, epoch=self._counters.num_epochs + 1)

    def _epoch(self) -> None:
        self._context._epoch = self._counters.num_epochs + 1
        self._data_epoch = self._trainer._data.state_dict().get("epoch")
        self._calls.call("on_epoch_start", self._context)
        with self._reporter.epoch():
            if not self._updates():
                return
        self._finite.end_epoch(self._counters.num_updates)
        self._counters.num_epochs += 1
        self._context._num_epochs_done = self._counters.num_epochs
        self._reason = self._reason or self._why_stop(stop_wanted=False)
        self._after(
            "on_epoch_end",
            evaluate_due=is_due(self._counters.num_epochs, self._settings.validate_every_epochs),
            save_due=is_due(self._counters.num_epochs, self._settings.save_every_epochs),
        )

    def _updates(self) -> bool:
        """The updates that are left in the epoch; False when the run ends before the epoch does."""
        asked = time.perf_counter()
        for batches in grouped(self._trainer._data, self._settings.update_freq):
            moved = [self._move(batch) for batch in batches] if self._is_on_device else batches
            self._update(moved, data_seconds=time.perf_counter() - asked)
            if self._reason is not None and not self._is_last_update():
                return False
            asked = time.perf_counter()
        return True

    def _update(self, batches: list[Any], *, data_seconds: float) -> None:
        context, counters = self._context, self._counters
        context._lr = self._trainer._rates.apply(counters.num_updates)
        self._calls.call("on_step_start", context)
        world, rank = context._world_size, context._rank
        result = self._step.run(
            counters.num_updates,
            [(position * world + rank, batch) for position, batch in enumerate(batches)],
            wants_stop=self._signals.received is not None or (rank == 0 and self._must_end()),
            on_gradients=self._on_gradients,
        )
        counters.num_updates += 1
        self._trainer._rates.after_update()
        self._note_saved()
        if result.skipped is not None:
            counters.num_skipped += 1
            self._trainer.event("skipped", step=counters.num_updates, reason=result.skipped)
        context._step_seconds = data_seconds + result.seconds
        show(context, counters.num_updates, result)
        where = Where(context._epoch, counters.num_updates, context._lr)
        self._reporter.update(where, result, data_seconds=data_seconds, batch=batches[-1])
        context._logged = self._reporter.logged()
        suspicion = self._finite.observe(counters.num_updates, result.loss, result.weight)
        self._reason = self._why_stop(stop_wanted=result.stop_wanted) or suspicion
        self._after(
            "on_step_end",
            evaluate_due=is_due(counters.num_updates, self._settings.validate_every_updates),
            save_due=is_due(counters.num_updates, self._settings.save_every_updates),
        )

    def _after(self, moment: str, *, evaluate_due: bool, save_due: bool) -> None:
        """Evaluate, then ask who saves, then log, then save what all of them know: at the end of an update or an epoch."""
        context = self._context
        self._calls.call(moment, context, order=Order.EVALUATE)
        if self._asked("evaluate") or evaluate_due:  # in this order: what was asked for is answered by this evaluation
            self._evaluate()
        self._calls.call(moment, context, order=Order.SAVE)
        save_due = self._asked("save") or (save_due and self._checkpoints.follows_settings) or self._save_waits
        self._calls.call(moment, context, order=Order.LOG)
        if self._asked("stop"):
            asked = "; ".join(dict.fromkeys(filter(None, ranks.gather(self._taken))))
            self._reason = self._reason or f"a callback asked to stop: {asked}"
            if self._asked("give up"):
                self._reason, self._at_end = asked, ()
        self._reporter.end_update()
        self._save_waits = save_due and moment == "on_step_end" and self._is_last_update()
        if save_due and not self._save_waits and self._reason is None:
            self._save()  # a run that stops saves after its last evaluation instead

    def _asked(self, request: str) -> bool:
        """Did a callback ask for this, on any rank? Ranks talk about it only when there are callbacks that may."""
        self._taken = self._context._requests.pop(request, None)
        return self._calls.may_ask and ranks.any_rank(self._taken is not None)

    def _is_last_update(self) -> bool:
        """Was the update just made the last one of its epoch? Only data that tells its epoch knows."""
        return self._data_epoch is not None and self._trainer._data.state_dict()["epoch"] != self._data_epoch

    def _evaluate(self) -> None:
        trainer, context, last = self._trainer, self._context, self._state.evaluation
        if self._valid_data is None or last.step == self._counters.num_updates:
            return
        self._reporter.log_interval()
        self._calls.call("on_evaluation_start", context)
        started = time.perf_counter()
        with aggregate(new_root=True):  # what the task logs about held-out data is no part of the training's metrics
            results = evaluate(
                trainer._task,
                self._valid_data,
                move=self._move,
                names=self._evaluation_names,
                on_batch=lambda values: self._calls.call("on_evaluation_batch", context, values),
            )
        seconds = time.perf_counter() - started
        last.step, context._metrics = self._counters.num_updates, results
        with untouched(trainer._task.model):
            self._calls.call("on_evaluation_end", context)
        # A callback may have added to it, on one rank only: BLEU, for instance. All decide by what rank 0 knows.
        last.results = context._metrics = ranks.gather(dict(context.metrics))[0]
        where = Where(context.epoch, self._counters.num_updates, context.lr)
        self._reporter.evaluation(where, last.results, seconds)
        self._stop.check_evaluation(last.results)
        value = last.results.get(self._stop.metric)
        self._stop.observe(self._state.stop, value)
        if value is not None:
            trainer._rates.after_evaluation(value)
        self._reason = self._reason or self._why_stop(stop_wanted=False)

    def _save(self) -> None:
        self._tick()
        self._reporter.write_steps()
        about = {
            "metrics": dict(self._context.metrics),
            "distrusted": self._context.distrusted or self._finite.suspicion,
        }
        self._checkpoints.save(self._counters.num_updates, self._state.collect, about)

    def _note_saved(self) -> None:
        """Tell of the checkpoints that were completed in the meantime."""
        for outcome in self._checkpoints.finished():
            self._calls.call("on_checkpoint", self._context, outcome.path)

    def _finish(self) -> None:
        if "evaluate" in self._at_end:
            self._evaluate()
        if "save" in self._at_end:
            self._save()
        self._checkpoints.wait()
        self._note_saved()
        self._checkpoints.raise_failure()
        self._trainer.event("stop", reason=self._reason, step=self._counters.num_updates)
        self._calls.call("on_run_end", self._context)
        self._trainer.logger.flush()

    def _why_stop(self, *, stop_wanted: bool) -> str | None:
        """The reason to stop, the same on every rank; clocks and signals come in only as `stop_wanted`, which is agreed."""
        if stop_wanted:
            self._checkpoints.raise_failure()
            signal = next(filter(None, ranks.gather(self._signals.name or None)), None)
            self._at_end = ("save",) if signal else self._at_end
            return f"{signal} was received" if signal else f"max_hours: {self._stop.max_hours} hours were spent"
        update = self._counters.num_updates
        lr = math.inf if self._stop.min_lr is None else self._trainer._rates.lr(update)
        progress = Progress(num_updates=update, num_epochs=self._counters.num_epochs, hours=0.0, lr=lr)
        return self._stop.reason(self._state.stop, progress, past_peak_lr=self._trainer._rates.past_peak(update))

    def _must_end(self) -> bool:
        """Is the time up, or has a save failed? Rank 0's word counts."""
        if self._checkpoints.failure is not None:
            return True
        if self._stop.max_hours is None:
            return False
        self._tick()
        return self._counters.seconds >= self._stop.max_hours * 3600

    def _tick(self) -> None:
        now = time.monotonic()
        self._counters.seconds += now - self._clock
        self._clock = now

    def _on_gradients(self, norm: float) -> None:
        if not self._is_checked:  # a model may have made parameters in its first forward
            check_parameters(self._trainer._task.model, self._trainer._optimizer)
            self._is_checked = True
        self._context._grad_norm = norm
        self._calls.call("on_backward_end", self._context)

    def _move(self, batch: Any) -> Any:
        return moved(batch, self._trainer._device) if self._is_on_device else batch
