"""`Trainer`: epochs of updates, with evaluation, checkpoints, metrics and callbacks, until a stop
condition is met.

What one call of `train` does, in order:

    resume from the newest valid checkpoint, if there is one
    while not stopped:
        for each update of the epoch:
            take update_freq micro-batches                    train.data_time
            forward, backward, step                           train.fp_time, train.bp_time,
                train.grad_time
            every log_interval updates: log the inner metrics and reset them
            evaluate if due, call the callbacks that save, then those that log, then save if due
        the last line again at the end of the epoch
    evaluate, save

When a condition is met or a callback asks to stop, the run evaluates and saves. After SIGTERM and
Ctrl-C it only saves, to end fast. It does neither when a callback gives up the state
(`Context.ask_to_give_up`). Saving runs in the background (see saving.py). A save due at an epoch's
last update waits for the epoch's end, to be the only one.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from signal import Signals
from typing import Any, Protocol

import torch

from sonde import ranks
from sonde.callbacks.base import Callback, Dispatcher, Order
from sonde.callbacks.context import Context, ContextValues
from sonde.callbacks.spikes import with_spikes
from sonde.checkpoint.digest import Live
from sonde.errors import SettingError
from sonde.log.logger import Logger
from sonde.metrics import stack as metrics
from sonde.records.layout import STEPS
from sonde.records.replay_order import is_check
from sonde.run import Run
from sonde.train import determinism
from sonde.train.check_seam import update_maker
from sonde.train.gradients import check_parameters, choose_sync, describe_shapes, trainable
from sonde.train.held_out import Evaluations, held_out_data
from sonde.train.rates import AnySchedule, Rates, describe_schedule
from sonde.train.reporting import Reporter, open_tb_writer, visible_logging
from sonde.train.resuming import record_state, tell_resume
from sonde.train.saving import Checkpoints, Stateful, TrainerState
from sonde.train.schedule import Plateau
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import FinitenessCheck, StopWhen, stop_signals
from sonde.train.task import Task, TrainingData, as_training_data, grouped
from sonde.train.unregistered import tell_unregistered


class Trainer:
    """Trains one task on one source of data.

    ```python
    import torch
    from sonde import Run, StopWhen, Trainer

    class Task:
        model = torch.nn.Linear(4, 1)
        def compute(self, batch):
            return self.model(batch).square().mean(), len(batch)

    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
    optimizer = torch.optim.AdamW(Task.model.parameters())
    with Run("runs/mine") as run:
        trainer = Trainer(Task(), data, optimizer, schedule=lambda update: 1e-2, run=run)
        trainer.train(stop=StopWhen(max_updates=30))
    ```
    """

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
        heal: "Healer | None" = None,
        create_tb_writer: bool = False,
    ) -> None:
        """Prepare a training; `train` starts it.

        Args:
            task: Has a `model`, and a `compute(batch)` that returns the mean loss and its count.
            data: Yields batches: a torch DataLoader, or anything with `TrainingData`'s methods.
            optimizer: The optimizer of the task's model.
            schedule: The learning rate: a `Schedule`, a torch scheduler, a function of the update.
            run: The run that records everything; without one, nothing is recorded.
            valid_data: Returns this rank's held-out batches, from the start at each call.
            settings: Micro-batches, clipping, precision, intervals.
            heal: `Heal(max_times=5)` lets the run recover by itself (docs/heal.md).
            create_tb_writer: Make a TensorBoard writer, `tb_writer`, for callbacks.
        """
        self.settings = settings or TrainerSettings()
        self.plateau: Plateau | None = None
        """Set this to lower the learning rate when evaluations stop improving."""
        self.logger = run.logger if run else Logger([])
        """Receives log records; the run's own logger unless you set another one before training."""
        self.task = task
        self.data: Any = as_training_data(data)
        self.schedule = schedule
        self.run = run
        self.optimizer = optimizer
        self.rates = Rates(schedule, optimizer)
        self.valid_data = valid_data
        check_parameters(task.model, optimizer)
        self.device = trainable(task.model)[0].device
        if heal is not None and run is None:
            raise SettingError("heal needs a run to go back in", hint="Trainer(…, run=Run(…))")
        self.heal = heal
        self.tb_writer: Any = open_tb_writer(run) if create_tb_writer else None
        """A TensorBoard SummaryWriter in the run, on rank 0, if you asked for it."""
        self.checkpoint_dir = None if run is None else str(run.checkpoint_place)
        """Where the run keeps its checkpoints; for callbacks, as NeMo's scripts pass it on."""
        self.gave_up = False
        """Whether the last training ended because a callback gave up its state."""

    def train(
        self, *, stop: StopWhen, callbacks: Sequence[Callback] = (), start_over: bool = False
    ) -> str:
        """Train until a stop condition is met and return the reason in words.

        A run resumes from its newest valid checkpoint. Raises if the run saved checkpoints but none
        is usable, unless `start_over` is true. After SIGTERM or Ctrl-C it raises SystemExit (143,
        130) once the checkpoint is saved.
        """
        # in a check, the recorder watches
        if self.run is not None and self.settings.watch_spikes and not is_check():
            callbacks = with_spikes(callbacks, self.run, self.data, seed=self.settings.seed)
        if self.heal is None:
            return self._train(stop, callbacks, start_over)

        def train_watched(watch: Callback, from_the_beginning: bool) -> str:
            return self._train(stop, [*callbacks, watch], start_over or from_the_beginning)

        return self.heal.train(self, train_watched)

    def _train(self, stop: StopWhen, callbacks: Sequence[Callback], start_over: bool) -> str:
        self.rates.plateau = self.plateau
        self.rates.check(stop)
        ranks.check_agreement(
            {
                "settings": asdict(self.settings),
                "schedule": describe_schedule(self.schedule),
                "stop": asdict(stop),
                "model": describe_shapes(self.task.model),
            }
        )
        if self.run is not None and self.run.rank == 0:
            determinism.warn_about_changes(self.run.layout.root)
        self.event(determinism.EVENT, **determinism.describe_determinism())
        with stop_signals() as signals, visible_logging():
            if ranks.rank() == 0:
                tell_unregistered(self.task.model)
            loop = _Loop(self, stop, callbacks, signals)
            reason = loop.run(start_over=start_over)
            self.gave_up = not loop.saves_at_end
        return reason

    def event(self, name: str, **details: object) -> None:
        """Record an event in the run, if there is one."""
        if self.run is not None:
            self.run.event(name, **details)


class Healer(Protocol):
    """Lets a training recover by itself: `sonde.heal.Heal`."""

    def train(self, trainer: Trainer, start: Callable[[Callback, bool], str], /) -> str:
        """Train to the end, from a good state again after an anomaly, and return why it stopped.

        `start` trains, with a callback that watches, from the newest checkpoint or (if the second
        argument is true) from the beginning.
        """


def _parts_with_state(trainer: Trainer, scale: Stateful) -> dict[str, Stateful]:
    """Return what has a state besides the model and the optimizer."""
    # A checkpoint may fall into the middle of an interval, so the metrics are saved too.
    parts: dict[str, Stateful] = {"metrics": metrics, "data": trainer.data, "scale": scale}
    if trainer.plateau is not None:
        parts["plateau"] = trainer.plateau
    if trainer.rates.scheduler is not None:
        parts["schedule"] = trainer.rates.scheduler
    return parts


def _is_due(count: int, every: int | None) -> bool:
    return every is not None and count % every == 0


class _Loop:
    """One call of `train`, with the objects that live as long as it does."""

    def __init__(
        self,
        trainer: Trainer,
        stop: StopWhen,
        callbacks: Sequence[Callback],
        signals: Sequence[Signals],
    ) -> None:
        run = trainer.run
        self._trainer = trainer
        self._settings = trainer.settings
        self._shown = ContextValues(
            rank=ranks.rank(),
            world_size=ranks.world_size(),
            run_directory=run.directory if run else None,
        )
        context = self._context = Context(self._shown)
        context.close_at_end(trainer.tb_writer)
        self._stop = stop
        self._signals = signals
        self._calls = Dispatcher(callbacks, trainer.event, rank=context.rank)
        self._calls.call("on_setup", context)
        self._checkpoints = Checkpoints(
            context.checkpoint_plan, run, trainer.settings, trainer.event
        )
        self._sync = choose_sync(trainer.task.model, trainer.settings)
        self._step = update_maker(trainer.task, trainer.optimizer, self._sync, self._settings, run)
        steps = run.records(STEPS) if run is not None and run.rank == 0 else None
        self._reporter = Reporter(
            trainer.logger, interval=trainer.settings.log_interval, steps=steps
        )
        parts = _parts_with_state(trainer, self._step.scale)
        self._state = TrainerState(trainer.task.model, trainer.optimizer, parts, callbacks)
        self._live = Live(trainer.task.model, trainer.optimizer, {})
        self._counters = self._state.counters
        held_out = held_out_data(trainer.valid_data, callbacks)
        self._evaluations = Evaluations(
            held_out, trainer.task, trainer.device, self._calls, self._shown, context
        )
        self._reason: str | None = None
        self._finite = FinitenessCheck(trainer.settings.max_nonfinite_updates, trainer.event)
        self.saves_at_end = True
        self._evaluates_at_end = True
        self._save_waits = False
        self._data_epoch: Any = None
        self._clock = time.monotonic()

    def run(self, *, start_over: bool) -> str:
        """Resume, train and finish. Returns why training stopped."""
        try:
            self._reporter.run_start()
            self._resume(start_over)
            self._trainer.task.model.train()
            self._calls.call("on_run_start", self._context)
            self._evaluate("on_run_start", asked=bool(self._asked("evaluate")))
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
        trainer = self._trainer
        step = self._checkpoints.restore(self._state, trainer.task.model, start_over=start_over)
        if step is None and trainer.heal is not None:
            self._save()  # rollback may return to the beginning too
        if step is None:
            return
        done = self._counters.num_epochs
        last = self._state.evaluation
        self._evaluations.resume(last.step)
        self._shown.step = step
        self._shown.epoch = done + 1
        self._shown.num_epochs_done = done
        self._shown.metrics = last.results
        trainer.event("resume", step=step, epoch=done + 1)
        if trainer.run is not None:
            rate = trainer.rates.lr(step)
            tell_resume(trainer.run, self._live, step, rate, num_epochs=done, data=trainer.data)

    def _epoch(self) -> None:
        self._shown.epoch = self._counters.num_epochs + 1
        self._data_epoch = self._trainer.data.state_dict().get("epoch")
        self._calls.call("on_epoch_start", self._context)
        with self._reporter.epoch():
            if not self._updates():
                return
        self._finite.end_epoch(self._counters.num_updates)
        self._counters.num_epochs += 1
        self._shown.num_epochs_done = self._counters.num_epochs
        self._reason = self._reason or self._why_stop(stop_wanted=False)
        every = self._settings.validate_every_epochs, self._settings.save_every_epochs
        self._after("on_epoch_end", self._counters.num_epochs, *every)

    def _updates(self) -> bool:
        """Make the remaining updates of the epoch. Returns False if the run ends before the epoch
        does.
        """
        asked = time.perf_counter()
        for batches in grouped(
            self._trainer.data, self._settings.update_freq, self._trainer.device
        ):
            self._update(batches, data_seconds=time.perf_counter() - asked)
            if self._reason is not None and not self._is_last_update():
                return False
            asked = time.perf_counter()
        return True

    def _update(self, batches: list[Any], *, data_seconds: float) -> None:
        shown = self._shown
        counters = self._counters
        shown.lr = self._trainer.rates.apply(counters.num_updates)
        self._calls.call("on_step_start", self._context)
        world = shown.world_size
        result = self._step.run(
            counters.num_updates,
            [(position * world + shown.rank, batch) for position, batch in enumerate(batches)],
            wants_stop=bool(self._signals) or (shown.rank == 0 and self._must_end()),
            on_gradients=self._on_gradients,
        )
        counters.num_updates += 1
        if self._trainer.rates.scheduler is not None:
            self._trainer.rates.after_update()
        if self._checkpoints.news:
            self._note_saved()
        if result.skipped is not None:
            counters.num_skipped += 1
            self._trainer.event("skipped", step=counters.num_updates, reason=result.skipped)
        shown.step = counters.num_updates
        shown.step_seconds = data_seconds + result.seconds
        shown.weight = result.weight
        shown.grad_norm = result.grad_norm
        of_task = result.outputs[-1].tensors if result.outputs else {}
        shown.tensors = {"loss": result.loss, **of_task}
        shown.outputs = result.outputs
        shown.logged = self._reporter.logged()
        self._reporter.update(self._context, result, data_seconds=data_seconds, batch=batches[-1])
        suspicion = self._finite.observe(counters.num_updates, result.loss, result.weight)
        self._reason = self._why_stop(stop_wanted=result.stop_wanted) or suspicion
        every = self._settings.validate_every_updates, self._settings.save_every_updates
        self._after("on_step_end", counters.num_updates, *every)

    def _after(
        self, moment: str, count: int, evaluate_every: int | None, save_every: int | None
    ) -> None:
        """Handle the end of an update or epoch: evaluate, ask callbacks that save, then those that
        log, then save.
        """
        context = self._context
        calls = self._calls
        if Order.EVALUATE in calls.orders:
            calls.call(moment, context, order=Order.EVALUATE)
        # the request is taken back even if an evaluation is due anyway: one answers both
        is_asked = bool(self._asked("evaluate"))
        self._evaluate(moment, asked=is_asked or _is_due(count, evaluate_every))
        if Order.SAVE in calls.orders:
            calls.call(moment, context, order=Order.SAVE)
        save_due = bool(self._asked("save")) or self._save_waits
        if self._checkpoints.follows_settings and _is_due(count, save_every):
            save_due = True
        calls.call(moment, context, order=Order.LOG)
        self._heed_requests_to_stop()
        self._reporter.end_update()
        self._save_waits = save_due and moment == "on_step_end" and self._is_last_update()
        if save_due and not self._save_waits and self._reason is None:
            self._save()  # a run that stops saves after its last evaluation instead

    def _heed_requests_to_stop(self) -> None:
        """Let a callback end the run."""
        asked = self._asked("stop")
        if not asked:
            return
        if self._asked("give up"):
            self._reason = "; ".join(asked)
            self._evaluates_at_end = False
            self.saves_at_end = False
        elif self._reason is None:
            self._reason = f"a callback asked to stop: {'; '.join(asked)}"

    def _asked(self, request: str) -> list[str]:
        """Return why callbacks asked for this, over all ranks. If no callback may ask, nobody is:
        ranks would communicate.
        """
        if not self._calls.may_ask:
            return []
        own = self._context.requests.pop(request, None)
        if not ranks.any_rank(own is not None):
            return []
        return list(dict.fromkeys(reason for reason in ranks.gather(own) if reason is not None))

    def _is_last_update(self) -> bool:
        """Return whether the last update ended its epoch. Only known if the data reports its
        epoch.
        """
        if self._data_epoch is None:
            return False
        return bool(self._trainer.data.state_dict()["epoch"] != self._data_epoch)

    def _evaluate(self, moment: str, *, asked: bool) -> None:
        """Evaluate on all held-out data that are due; `asked` is about the main ones."""
        due = self._evaluations.due(moment, asked=asked)
        if not due:
            return
        context = self._context
        last = self._state.evaluation
        self._reporter.log_interval()
        started = time.perf_counter()
        results, has_main = self._evaluations.run(due)
        seconds = time.perf_counter() - started
        # A callback may have added results on one rank only, such as BLEU. All ranks decide by rank
        # 0's results.
        results = ranks.gather(results)[0]
        last.results = results if has_main else {**last.results, **results}
        self._shown.metrics = last.results
        self._reporter.evaluation(context, results, seconds)
        if has_main:
            last.step = self._counters.num_updates
            self._stop.check_evaluation(last.results)
        value = results.get(self._stop.metric)
        if value is not None:
            self._stop.observe(self._state.stop, value)
            self._trainer.rates.after_evaluation(value)
        self._reason = self._reason or self._why_stop(stop_wanted=False)

    def _save(self) -> None:
        self._tick()
        self._reporter.write_steps()
        distrusted = self._context.distrusted or self._finite.suspicion
        about = {"metrics": dict(self._context.metrics), "distrusted": distrusted}
        self._checkpoints.save(self._counters.num_updates, self._state.collect, about)
        if self._trainer.run is not None:
            record_state(self._trainer.run, self._live, self._counters.num_updates)

    def _note_saved(self) -> None:
        """Notify the callbacks about checkpoints completed in the meantime."""
        for outcome in self._checkpoints.finished():
            self._calls.call("on_checkpoint", self._context, outcome.path)

    def _finish(self) -> None:
        if self._evaluates_at_end:
            self._evaluate("on_run_end", asked=True)
        if self.saves_at_end:
            self._save()
        self._checkpoints.wait()
        self._note_saved()
        self._checkpoints.raise_failure()
        self._trainer.event("stop", reason=self._reason, step=self._counters.num_updates)
        self._calls.call("on_run_end", self._context)
        self._trainer.logger.flush()

    def _why_stop(self, *, stop_wanted: bool) -> str | None:
        """Return the reason to stop, the same on every rank. Ranks have agreed on `stop_wanted`
        (clocks and signals).
        """
        if stop_wanted:
            self._checkpoints.raise_failure()
            own = self._signals[0].name if self._signals else None
            signal = next(filter(None, ranks.gather(own)), None)
            if signal is None:
                return f"max_hours: {self._stop.max_hours} hours were spent"
            self._evaluates_at_end = False
            return f"{signal} was received"
        counters = self._counters
        rates = self._trainer.rates
        lr = math.inf
        # a low rate is normal in warm-up
        if self._stop.min_lr is not None and rates.past_peak(counters.num_updates):
            lr = rates.lr(counters.num_updates)
        return self._stop.reason(self._state.stop, counters.num_updates, counters.num_epochs, lr)

    def _must_end(self) -> bool:
        """Return whether the time limit is reached or a save has failed. Rank 0 decides."""
        limit = self._stop.max_hours
        if limit is not None:
            self._tick()
        return self._checkpoints.failure is not None or (
            limit is not None and self._counters.seconds >= limit * 3600
        )

    def _tick(self) -> None:
        now = time.monotonic()
        self._counters.seconds += now - self._clock
        self._clock = now

    def _on_gradients(self, norm: float) -> None:
        # a model may create parameters in its first forward pass
        if not self._counters.num_updates:
            check_parameters(self._trainer.task.model, self._trainer.optimizer)
        self._shown.grad_norm = norm
        self._calls.call("on_backward_end", self._context)
