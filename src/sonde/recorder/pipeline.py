"""The way of an update through the recorder, from top to bottom.

    begin_batch      a micro-batch begins: it is held, with the generators and autocast of now
    loss_reported    its loss is known, from the user, from the model (forward_ends), or as what
                     backward is called on (backward_begins)
    gradients_ready  backward is done and nothing has changed: the update is judged, and an event
                     is looked into at the scene
    after_step       the optimizer has moved
    end_update       the update is over and is written down
    failed           an exception ended it instead

A loop with a step function makes these calls through `Recorder.step` and the hooks; a host makes
them the same way. Only this class changes an update. Nothing here raises into the loop (guard.py).
"""

from collections.abc import Callable
from time import perf_counter
from types import CoroutineType, GeneratorType
from typing import Any, Final

import torch
from torch import Tensor

from sonde.errors import TrainingStopped
from sonde.recorder.checking.first_look import LOOK_EVERY, FirstLook
from sonde.recorder.guard import Guard, guarded
from sonde.recorder.hooks import (
    Observer,
    are_gradients_left,
    gradient_norm,
    has_gradients,
)
from sonde.recorder.intake import BatchIntake
from sonde.recorder.judgement import Judgement
from sonde.recorder.keeper import Keeper
from sonde.recorder.loss_intake import LossIntake
from sonde.recorder.losses import reaches_compiled
from sonde.recorder.moment import take_moment
from sonde.recorder.rank_watch import RankWatch
from sonde.recorder.scaler import ScalerWatch
from sonde.recorder.state_watch import StateWatch
from sonde.recorder.training import Training
from sonde.recorder.update import Forward, Stage, Update, UpdateClock
from sonde.recorder.vitals import VitalsWatch
from sonde.run import Run

_MAX_FIRST_CALLS: Final = 1000
"""How many micro-batches the first update may take before it is told that no optimizer moves."""
_MIN_CALLS: Final = 16
"""Fewer micro-batches than this are never too many for an update."""
_NOT_RUN_YET: Final = (CoroutineType, GeneratorType)
"""What calling an asynchronous function, or one that yields, returns."""

# Global names, because a member of an enumeration takes three times as long to look up.
_COLLECTING: Final = Stage.COLLECTING
_READY: Final = Stage.READY
_APPLIED: Final = Stage.APPLIED


class Pipeline(Observer):
    """Takes the updates of one training through their stages."""

    def __init__(
        self,
        training: Training,
        keeper: Keeper,
        judgement: Judgement,
        guard: Guard,
        sample_ids: Callable[[Any], Any] | None,
    ) -> None:
        self.training = training
        self.guard = guard
        self.num_updates = 0
        """The number of completed updates."""
        self.is_inside = False
        """Whether a step function passed by the user is running."""
        self.before_first_update: Callable[[], None] = lambda: None
        """Called before the first update of a training that does not resume."""
        self.before_update: Callable[[], None] | None = None
        """Called before an update, if anything is to be done there."""
        self._keeper = keeper
        self._judgement = judgement
        self.state_watch = StateWatch(training, keeper, lambda: judgement.recent, guard)
        self.intake = BatchIntake(training, keeper, guard, sample_ids)
        self.first_look = FirstLook(training, guard)
        self._vitals = VitalsWatch(training, guard)
        self._rank_watch = RankWatch(training, judgement.quiet, guard)
        self._scaler = ScalerWatch()
        self._update: Update | None = None
        self._norm: Any = None
        self._other_optimizer: torch.optim.Optimizer | None = None
        self._losses = LossIntake(training, judgement, guard)
        self._has_failed = False
        self._has_begun = False
        self._longest = 0
        self._clock = UpdateClock()
        self.why_no_rows: str | None = None
        """Why rows are not seen; empty if they are, None before the first update is over."""

    # The stages.

    @guarded("the first step is not prepared")
    def begin_steps(self, train_step: Callable[..., Any]) -> None:
        """From now on, the loop calls a step function: what the model did before is no batch."""
        if reaches_compiled([train_step]):
            self.keep_from_compilation()
        if self._update is not None and self._update.stage is _COLLECTING:
            self._update = None

    @guarded("this batch is not recorded")
    def begin_batch(self, batch: Any, last: bool | None = None) -> None:
        """Begin a micro-batch; the first one of an update begins the update."""
        if self._has_failed:
            self._look_at_what_failed()
        update = self._update
        if update is None:
            update = self._begin_update()
            if self._keeper.has_work_at(self.num_updates):
                self._keeper.keep_state(self.num_updates)
                self.intake.look_again()
            if self.state_watch.is_waiting:
                self.state_watch.begin_update(self.num_updates)
            if self._rank_watch.is_on:
                self._rank_watch.begin_update(self.num_updates)
        self.intake.take(update, batch, last)
        if update.num_calls > _MIN_CALLS:
            _check_length(update, self._longest, self.guard)

    @guarded("losses are not recorded")
    def loss_reported(self, loss: Tensor, token_losses: Tensor | None = None) -> None:
        """Take the loss of the micro-batch as the user reports it, and those of its tokens."""
        if not self._losses.is_reported:
            self._losses.listen_to_reports(has_step_function=self.is_inside)
        if self._update is None and not self.is_inside:
            self.begin_batch(None)  # the loop has no step function, and calls parts of the model
        update = self._update
        if update is not None and update.stage is _COLLECTING and update.micro:
            self._losses.take_reported(update.micro[-1], loss, token_losses)
            if self._rank_watch.is_on:
                self._clock.loss_is_known()

    def gradients_ready(self) -> None:
        """Judge the update after backward and before anything changes, if its loss is known."""
        update = self._update
        if update is None or update.stage is not _COLLECTING or not update.micro:
            return
        update.note_rates(self.training.optimizer)
        if self.state_watch.is_waiting:
            self.state_watch.before_optimizer(update)
        update.stage = _READY
        update.clip_limit = None if self._norm is None else self.training.hooks.clip_limit
        losses = update.seen_losses()
        norm = _own_norm(self.training, self.guard) if self._norm is None else self._norm
        is_in_time = self._losses.is_in_time(losses)
        if not is_in_time or (not losses and self._judgement.is_alone):
            self._norm = norm  # it is judged with the loss, when that is known
            return
        update.is_judged = True
        if self._judgement.judge(update, losses, norm):
            # Without gradients, an optimizer changes nothing.
            self.training.optimizer.zero_grad(set_to_none=True)

    @guarded("this step is not recorded")
    def end_batch(self, returned: Any, last: bool | None) -> None:
        """End a micro-batch of a step function; the last one of an update ends the update."""
        self.is_inside = False
        update = self._update
        if update is None:
            return
        if type(returned) in _NOT_RUN_YET:
            _give_up_replay(update, self.training)
        if self.intake.watched is not None:
            self.intake.note_draws()
        if self._losses.backward.is_known is not False:
            self._losses.backward.note_returned(update, returned)
        if last is None and update.stage is not _APPLIED and self._other_optimizer is not None:
            _follow(self._other_optimizer, update, self.training, self.guard)
            self._keeper.begin_again()
        has_ended = update.stage is _APPLIED or self._scaler.has_updated
        if last or (last is None and has_ended):
            self._record(returned)

    @guarded("this step is not recorded")
    def end_update(self) -> None:
        """Record the finished update. For loops without a step function, and for hosts."""
        self._record(None)

    def _record(self, returned: Any) -> None:
        """Record the finished update. `returned` is its loss, if neither the model nor the user
        provided it before.
        """
        update = self._update
        self._update = None
        if update is None:
            return
        self.num_updates += 1
        self._clock.end(update, self._judgement.own_seconds)
        if self._rank_watch.is_on:
            self._rank_watch.note(self._clock)
        if update.num_calls > self._longest:
            self._longest = update.num_calls
        update.autocast = self.training.autocast
        if update.stage is _COLLECTING:
            self._norm = None  # it is that of an overflow, which is why the scaler skips
            _note_skip(update, self.training, self.state_watch)
            found = self._scaler.note_skip(update.step)
            if found is not None:
                self._judgement.quiet.tell(found, update.loss)
        else:
            self._scaler.note_made()
        if self.first_look.is_on or self.num_updates % LOOK_EVERY == 0:
            self.first_look.end_update(update)
        if not update.is_judged:
            self._judge_late(update, returned)
        update.loss_factor = self.training.backward_factor
        if self.why_no_rows is None:
            self.why_no_rows = _why_no_rows(update)
        self._judgement.done(update)
        if self.state_watch.losses is not None:
            self.state_watch.recorded(update)

    @guarded("that a step failed is not recorded")
    def failed(self, error: BaseException) -> None:
        """Drop the micro-batch that failed. If the optimizer had moved, the update counts."""
        self.is_inside = False
        update = self._update
        if update is None or isinstance(error, TrainingStopped):
            self._update = None
            return
        if update.stage is _APPLIED:
            self.end_update()
            return
        _tell_failure(self.training.run, update, error)
        update.drop_last()
        self._has_failed = True

    # What the hooks see (hooks.py).

    @guarded("forward passes are not recorded")
    def forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
        """Hold the arguments of a forward pass. Outside a step function, it begins a batch."""
        self._losses.note_call_of_model()
        if not self.is_inside:
            if not trains or self.training.step_function is not None:
                return  # an evaluation, or predictions, between steps
            if self._update is not None and self._update.stage is _APPLIED:
                self.end_update()
            self.begin_batch(_only(args, kwargs))
        update = self._update
        if update is None or not update.micro:
            return
        _note_autocast(self.training)
        if not self._losses.is_reported:  # otherwise what the model returned is not needed
            device_type = self.training.device_type
            moment = take_moment(device_type, with_host=self.intake.draws_on_host)
            update.micro[-1].forwards.append(Forward(args, kwargs, moment))

    @guarded("forward passes are not recorded")
    def forward_ends(self, output: Any) -> None:
        """Take the loss from what the model returned."""
        update = self._update
        if self._losses.is_reported or update is None or not update.micro:
            return
        micro = update.micro[-1]
        if not micro.forwards or update.stage is not _COLLECTING:
            return
        if self._losses.take_from_model(micro, output) and self._rank_watch.is_on:
            self._clock.loss_is_known()

    @guarded("losses are not recorded")
    def backward_begins(self, loss: Tensor) -> None:
        """Take the loss from what backward is called on, if nothing else tells it."""
        update = self._update
        if update is None and not self.is_inside:
            self._losses.note_unseen(loss)
        if update is None or not update.micro or update.stage is not _COLLECTING:
            return
        if self._losses.take_from_backward(update.micro[-1], loss) and self._rank_watch.is_on:
            self._clock.loss_is_known()

    def norm_seen(self, norm: Any) -> None:
        """The loop clips its gradients."""
        self._norm = norm

    @guarded("gradients are not judged")
    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Judge the update if its optimizer is about to move."""
        if self.first_look.is_on:
            self.first_look.before_step(optimizer, self._norm)
        if optimizer is self.training.optimizer:
            if self._update is None:
                self._begin_unseen_update()
            self.gradients_ready()
            if self._vitals.is_on:
                self._vitals.before_step(self._update)
            return
        if self._update is not None:
            self._update.has_other_moved = True
        if self.training.is_moved_by(optimizer):
            self._other_optimizer = optimizer

    @guarded("this step is not recorded")
    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that the optimizer has moved."""
        if optimizer is self.training.optimizer and self._update is not None:
            self._other_optimizer = None
            self._update.stage = _APPLIED
            if self._vitals.is_on:
                self._vitals.after_step(self._update)
            if not self.is_inside:
                self._record(None)

    def _begin_unseen_update(self) -> None:
        """Begin an update when its optimizer moves, if nothing but its backward was seen."""
        loss = self._losses.take_unseen()
        if loss is not None:
            self.begin_batch(None)
            self.backward_begins(loss)

    def _look_at_what_failed(self) -> None:
        """After an exception, see whether the loop has dropped the gradients."""
        self._has_failed = False
        if not are_gradients_left(self.training.optimizer):
            self._update = None
            return
        update = self._update
        if update is None or not update.micro:
            update = self._begin_update()
        update.cannot_replay = "gradients of a step that failed were still there"

    def _begin_update(self) -> Update:
        if self.before_update is not None:
            self.before_update()
        self._clock.began = perf_counter()
        update = Update(self.num_updates + 1, had_gradients=has_gradients(self.training.optimizer))
        self._update = update
        self._norm = None
        self._other_optimizer = None
        self._scaler.has_updated = False
        if not self._has_begun:
            self._has_begun = True
            self._scaler.watch(self.training.scalers())
            self.state_watch.start(self.num_updates)
            if not self.num_updates:
                self.before_first_update()
        return update

    def num_applied(self) -> int | None:
        """Return how many updates the weights have; None while nothing is recorded."""
        is_recording = self.training.hooks.tells(self)
        is_applied = self._update is not None and self._update.stage is _APPLIED
        return self.num_updates + int(is_applied) if is_recording else None

    def _judge_late(self, update: Update, returned: Any) -> None:
        """Judge an update after the optimizer has moved, or was not called at all."""
        losses = self._losses.late_losses(update, returned)
        if update.skipped is None:
            update.stage = _APPLIED
        self._judgement.judge(update, losses, self._norm)


def _note_skip(update: Update, training: Training, state_watch: StateWatch) -> None:
    """Note that a scaler has skipped the update."""
    update.note_rates(training.optimizer)
    if state_watch.is_waiting:
        state_watch.before_optimizer(update)
    update.skipped = "the optimizer was not called"


def _note_autocast(training: Training) -> None:
    """Note the precision of a forward pass that begins."""
    if torch.is_autocast_enabled(training.device_type):
        training.autocast = torch.get_autocast_dtype(training.device_type)


def _give_up_replay(update: Update, training: Training) -> None:
    """Note that a step function is a coroutine or a generator, which has not run yet."""
    update.cannot_replay = "its step function runs after it has returned"
    training.is_repeatable = False


def _tell_failure(run: Run, update: Update, error: BaseException) -> None:
    reason = f"{type(error).__name__}: {error}"[:500]
    run.event("step_failed", step=update.step, reason=reason)


def _check_length(update: Update, longest: int, guard: Guard) -> None:
    """If no optimizer has moved for very long, hold no more batches and tell why. `longest` is the
    number of calls in the longest update so far.
    """
    limit = max(2 * longest, _MIN_CALLS) if longest else _MAX_FIRST_CALLS
    if update.num_calls <= limit:
        return
    update.forget_batches()
    guard.tell(
        "no optimizer step",
        f"sonde: no optimizer has moved in {update.num_calls} calls of step, so nothing is"
        " recorded. If the loop has another optimizer now, give that one to a new Recorder",
    )


def _why_no_rows(update: Update) -> str:
    """Return why the losses of single rows are not seen; empty if they are."""
    if all(micro.rows is not None for micro in update.micro):
        return ""
    if any(micro.packs_samples for micro in update.micro):
        return "a row of the batch holds several samples"
    return "this loss does not show them; at an event they are run one by one"


def _follow(
    optimizer: torch.optim.Optimizer, update: Update, training: Training, guard: Guard
) -> None:
    """Record another optimizer from now on, because it moves the model."""
    training.optimizer = optimizer
    update.note_rates(optimizer)
    update.stage = _APPLIED
    guard.note(
        f"optimizer {id(optimizer)}",
        f"sonde: from step {update.step} on, another optimizer moves the model"
        f" ({type(optimizer).__name__}); the recorder follows it",
    )


def _own_norm(training: Training, guard: Guard) -> Any:
    """Return the norm of the gradients; None if it cannot be computed."""
    try:
        return gradient_norm(training.optimizer)
    except Exception as error:  # noqa: BLE001  gradients may be of any kind
        guard.catch("the gradient norm is not recorded", error)
        return None


def _only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call as a batch: the only one, or all of them."""
    if not args:
        return kwargs
    return args[0] if len(args) == 1 and not kwargs else args
