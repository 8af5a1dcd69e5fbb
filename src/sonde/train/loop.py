"""What happens in one training, and when.

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
from collections.abc import Sequence
from typing import Any, final

from sonde import ranks
from sonde.callbacks.base import Callback, Context, Order
from sonde.callbacks.dispatch import Dispatcher
from sonde.metrics.stack import aggregate
from sonde.records.append import RecordFile
from sonde.train.any_data import moved
from sonde.train.evaluation import choose_evaluation_data, evaluate, untouched
from sonde.train.finiteness import FinitenessWatch
from sonde.train.parameters import check_parameters, choose_sync
from sonde.train.reporting import METADATA, Reporter, Where
from sonde.train.saving import Checkpoints
from sonde.train.settings import is_due
from sonde.train.signals import StopSignals
from sonde.train.state import StatesByName, TrainerState
from sonde.train.step import UpdateStep
from sonde.train.stopping import Progress, StopWhen
from sonde.train.task import grouped


@final
class Loop:
    """One call of `train`: the parts that live as long as it does."""

    def __init__(
        self,
        trainer: Any,
        context: Context,
        *,
        stop: StopWhen,
        callbacks: Sequence[Callback],
        signals: StopSignals,
        steps: RecordFile | None,
    ) -> None:
        """`trainer` is a `Trainer`, which is built upon this; `steps` takes what every update did; None: nothing does."""
        self._trainer = trainer
        self._settings = trainer.settings
        self._context = context
        self._stop = stop
        self._signals = signals
        self._calls = Dispatcher(callbacks, trainer.event)
        self._calls.call("on_setup", context)
        self._checkpoints = Checkpoints(context.checkpoint_plan, trainer.run, trainer.settings)
        self._sync = choose_sync(trainer.task.model, trainer.settings)
        self._step = UpdateStep(trainer.task, trainer.optimizer, self._sync, trainer.settings)
        self._reporter = Reporter(trainer.logger.log, interval=trainer.settings.log_interval, steps=steps)
        parts: dict[str, Any] = {"data": trainer.data, "scale": self._step.scale}
        parts["callbacks"] = StatesByName(callbacks)
        parts |= {"plateau": trainer.plateau} if trainer.plateau is not None else {}
        parts |= {"schedule": trainer.rates.stateful} if trainer.rates.stateful is not None else {}
        self._state = TrainerState(trainer.task.model, trainer.optimizer, parts)
        self._counters = self._state.counters
        self._valid_data = choose_evaluation_data(trainer.valid_data, callbacks)
        self._evaluation_names = sorted({name for callback in callbacks for name in callback.evaluation_tensors})
        self._reason: str | None = None
        self._finite = FinitenessWatch(trainer.settings.max_nonfinite_updates, trainer.event)
        self.at_end: Sequence[str] = ("evaluate", "save")
        self._save_waits = self._is_checked = False
        self._data_epoch: Any = None
        self._clock = time.monotonic()
        self._is_on_device = trainer.device.type != "cpu"

    def run(self, *, start_over: bool) -> str:
        """Resume, train, finish; returns why it stopped."""
        for metric, metadata in METADATA.items():
            self._trainer.logger.metadata(metric, metadata)
        try:
            self._reporter.run_start()
            self._resume(start_over)
            self._trainer.task.model.train()
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
        step = self._checkpoints.restore(self._state, self._trainer.task.model, start_over=start_over)
        if step is None:
            if self._trainer.heal is not None:
                self._save()  # the beginning too is a state to go back to
            return
        done, results = self._counters, self._state.evaluation.results
        epoch = done.num_epochs + 1
        self._context.show(step=done.num_updates, epoch=epoch, num_epochs_done=done.num_epochs, metrics=results)
        self._trainer.event("resume", step=step, epoch=epoch)

    def _epoch(self) -> None:
        self._context.show(epoch=self._counters.num_epochs + 1)
        self._data_epoch = self._trainer.data.state_dict().get("epoch")
        self._calls.call("on_epoch_start", self._context)
        with self._reporter.epoch():
            if not self._updates():
                return
        self._finite.end_epoch(self._counters.num_updates)
        self._counters.num_epochs += 1
        self._context.show(num_epochs_done=self._counters.num_epochs)
        self._reason = self._reason or self._why_stop(stop_wanted=False)
        self._after(
            "on_epoch_end",
            evaluate_due=is_due(self._counters.num_epochs, self._settings.validate_every_epochs),
            save_due=is_due(self._counters.num_epochs, self._settings.save_every_epochs),
        )

    def _updates(self) -> bool:
        """The updates that are left in the epoch; False when the run ends before the epoch does."""
        asked = time.perf_counter()
        for batches in grouped(self._trainer.data, self._settings.update_freq):
            moved = [self._move(batch) for batch in batches] if self._is_on_device else batches
            self._update(moved, data_seconds=time.perf_counter() - asked)
            if self._reason is not None and not self._is_last_update():
                return False
            asked = time.perf_counter()
        return True

    def _update(self, batches: list[Any], *, data_seconds: float) -> None:
        context, counters = self._context, self._counters
        context.show(lr=self._trainer.rates.apply(counters.num_updates))
        self._calls.call("on_step_start", context)
        world, rank = context.world_size, context.rank
        result = self._step.run(
            counters.num_updates,
            [(position * world + rank, batch) for position, batch in enumerate(batches)],
            wants_stop=self._signals.received is not None or (rank == 0 and self._must_end()),
            on_gradients=self._on_gradients,
        )
        counters.num_updates += 1
        self._trainer.rates.after_update()
        self._note_saved()
        if result.skipped is not None:
            counters.num_skipped += 1
            self._trainer.event("skipped", step=counters.num_updates, reason=result.skipped)
        where = Where(context.epoch, counters.num_updates, context.lr)
        self._reporter.update(where, result, data_seconds=data_seconds, batch=batches[-1])
        seconds, logged = data_seconds + result.seconds, self._reporter.logged()
        context.show(step=counters.num_updates, step_seconds=seconds, logged=logged, **result.shown())
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
                self._reason, self.at_end = asked, ()
        self._reporter.end_update()
        self._save_waits = save_due and moment == "on_step_end" and self._is_last_update()
        if save_due and not self._save_waits and self._reason is None:
            self._save()  # a run that stops saves after its last evaluation instead

    def _asked(self, request: str) -> bool:
        """Did a callback ask for this, on any rank? Ranks talk about it only when there are callbacks that may."""
        self._taken = self._context.requests.pop(request, None)
        return self._calls.may_ask and ranks.any_rank(self._taken is not None)

    def _is_last_update(self) -> bool:
        """Was the update just made the last one of its epoch? Only data that tells its epoch knows."""
        return self._data_epoch is not None and self._trainer.data.state_dict()["epoch"] != self._data_epoch

    def _evaluate(self) -> None:
        trainer, context, last = self._trainer, self._context, self._state.evaluation
        if self._valid_data is None or last.step == self._counters.num_updates:
            return
        self._reporter.log_interval()
        self._calls.call("on_evaluation_start", context)
        started = time.perf_counter()
        with aggregate(new_root=True):  # what the task logs about held-out data is no part of the training's metrics
            results = evaluate(
                trainer.task,
                self._valid_data,
                move=self._move,
                names=self._evaluation_names,
                on_batch=lambda values: self._calls.call("on_evaluation_batch", context, values),
            )
        seconds = time.perf_counter() - started
        last.step = self._counters.num_updates
        context.show(metrics=results)
        with untouched(trainer.task.model):
            self._calls.call("on_evaluation_end", context)
        # A callback may have added to it, on one rank only: BLEU, for instance. All decide by what rank 0 knows.
        last.results = ranks.gather(dict(context.metrics))[0]
        context.show(metrics=last.results)
        where = Where(context.epoch, self._counters.num_updates, context.lr)
        self._reporter.evaluation(where, last.results, seconds)
        self._stop.check_evaluation(last.results)
        value = last.results.get(self._stop.metric)
        self._stop.observe(self._state.stop, value)
        if value is not None:
            trainer.rates.after_evaluation(value)
        self._reason = self._reason or self._why_stop(stop_wanted=False)

    def _save(self) -> None:
        self._tick()
        self._reporter.write_steps()
        distrusted = self._context.distrusted or self._finite.suspicion
        about = {"metrics": dict(self._context.metrics), "distrusted": distrusted}
        self._checkpoints.save(self._counters.num_updates, self._state.collect, about)

    def _note_saved(self) -> None:
        """Tell of the checkpoints that were completed in the meantime."""
        for outcome in self._checkpoints.finished():
            self._calls.call("on_checkpoint", self._context, outcome.path)

    def _finish(self) -> None:
        for last in self.at_end:
            self._evaluate() if last == "evaluate" else self._save()
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
            self.at_end = ("save",) if signal else self.at_end
            return f"{signal} was received" if signal else f"max_hours: {self._stop.max_hours} hours were spent"
        update = self._counters.num_updates
        lr = math.inf if self._stop.min_lr is None else self._trainer.rates.lr(update)
        progress = Progress(num_updates=update, num_epochs=self._counters.num_epochs, hours=0.0, lr=lr)
        return self._stop.reason(self._state.stop, progress, past_peak_lr=self._trainer.rates.past_peak(update))

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
            check_parameters(self._trainer.task.model, self._trainer.optimizer)
            self._is_checked = True
        self._context.show(grad_norm=norm)
        self._calls.call("on_backward_end", self._context)

    def _move(self, batch: Any) -> Any:
        return moved(batch, self._trainer.device) if self._is_on_device else batch
