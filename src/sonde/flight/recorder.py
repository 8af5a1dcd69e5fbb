"""`FlightRecorder`: follows your own training loop, judges each update before the optimizer step, and keeps what a replay needs.

    flight = FlightRecorder(run, model, optimizer, scheduler=scheduler, decode=tokenizer.decode)

    def train_step(batch):                  # all that happens to one batch
        loss = model(**batch).loss
        loss.backward(); clip; optimizer.step(); scheduler.step(); optimizer.zero_grad()
        return loss

    for batch in loader:
        loss = flight.step(train_step, batch)

An update has five stages, which a host (integrations/) without a step function calls itself:

    begin_batch      a micro-batch begins: it is held, with the current generators and autocast
    loss             its loss is known; by default taken from what the model returns
    before_update    backward is done, nothing has changed: the update is judged, and an event is investigated at the scene
    after_update     it is recorded
    take_over        in a replay (`run.is_replay`): instead of the first update, what the replay was asked for

Training with and without a recorder is bit-identical. Cost per step: benchmarks/flight.py.
"""

import atexit
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from sonde import ranks
from sonde.errors import SettingError
from sonde.flight.again import returned_loss
from sonde.flight.judgement import Judgement
from sonde.flight.keeper import Keeper
from sonde.flight.ring import Loss, MicroBatch, Update, host_generators, take_moment
from sonde.flight.samples import Rewound
from sonde.flight.settings import FlightSettings
from sonde.flight.takeover import give_up, take_over
from sonde.flight.training import Training, norm_of
from sonde.run import Run
from sonde.train import determinism
from sonde.train.saving import Stateful
from sonde.train.task import has_state

_T = TypeVar("_T")
_NUM_CHECKED: Final = 3
"""The number of micro-batches to check at the beginning and after each kept state.

The checks are whether steps draw from Python's or numpy's generators, and whether the loop overwrites its batches.
"""

_logger = logging.getLogger("sonde")


class FlightRecorder:
    """Records one training. Call `close` at the end, or close its run."""

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        decode: Callable[[list[int]], str] | None = None,
        sample_ids: Callable[[Any], Any] | None = None,
        settings: FlightSettings | None = None,
        **named: Stateful,
    ) -> None:
        """`model` is what the loop calls, including any wrapper and compilation.

        `decode` converts tokens to text. `sample_ids` returns the names of the samples in a batch: numbers, or pairs of
        dataset and number; a batch that is a dict may have them under that key. `named` is everything else with a
        `state_dict` that the training depends on: scheduler, scaler.
        """
        optimizer = _innermost(optimizer)
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise SettingError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        self.settings = settings or FlightSettings()
        self.num_updates = 0
        """The number of completed updates."""
        self.parts = Training(run, self.settings, model, optimizer, named, decode)
        """The training and its helper objects."""
        self.keeper = Keeper(self.parts)
        """Keeps states and batches."""
        self._judgement = Judgement(self.parts, self.keeper)
        self._watch = self.parts.watch
        self._watch.begin = self._begin_unannounced
        self._sample_ids = sample_ids
        self._num_checked = 0
        self._probed: MicroBatch | None = None
        self._is_replay = run.is_replay
        self._is_scaled = any(isinstance(one, torch.amp.GradScaler) for one in named.values())
        self._has_told = False
        self._data: Rewound | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._on_step),
            optimizer.register_step_post_hook(self._on_moved),
        ]
        run.event(determinism.EVENT, **determinism.describe_determinism())
        run.closing.append(self.close)
        atexit.register(self.close)

    def step(self, train_step: Callable[..., _T], batch: Any, *, last: bool | None = None) -> _T:
        """Call `train_step(batch)`, which does everything for one batch, record it, and return its result.

        A scaler passed by name may skip an update whose gradients overflow; it is recorded as skipped. With gradient
        accumulation, say which micro-batch is the last of its update: then `train_step(batch, last)` is called, and
        must step the optimizer if `last` is true.
        """
        if self._is_replay:
            take_over(self.parts, train_step, batch)  # does what was requested, and ends the process
        watch = self._watch
        self.parts.step_function = train_step
        update = self.begin_batch(batch, last=last)
        watch.is_inside = True
        try:
            result = train_step(batch) if last is None else train_step(batch, last)
        finally:
            watch.is_inside = False
        host = update.micro[-1].moment.host
        if host is not None and not watch.draws_on_host:
            watch.draws_on_host = host != host_generators()
        if last or (last is None and (update.is_moved or self._is_scaled)):
            self.after_update(result)
            self._go_back_if_called()
        return result

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, for `on_event="heal"`.

        A loader with a `state_dict` goes back with the training and resumes with `restore`. Rows that healing left out
        are removed from their batches, and empty batches are skipped.
        """
        if has_state(loader):
            loader = self._data = self.parts.add("data", Rewound(loader))
        healing = self._judgement.healing
        return iter(loader) if healing is None else healing.kept(loader, self._names_of)

    def begin_batch(self, batch: Any, *, last: bool | None = None) -> Update:
        """Begin a micro-batch; the first one of an update begins the update. Returns the update."""
        watch, update = self._watch, self._watch.update
        probes = self._num_checked < _NUM_CHECKED
        self._num_checked += probes
        if update is None:
            self._go_back_if_called()
            update = watch.update = Update(
                self.num_updates + 1, had_gradients=self.parts.optimizer.param_groups[0]["params"][0].grad is not None
            )
            watch.norm = None
            if self._data is not None:
                self._data.begin_update()
            if not self.num_updates and self._num_checked == 1:
                self._begin_anew()
            if self.keeper.is_due(self.num_updates):
                with watch.quiet():
                    self.keeper.keep_state(self.num_updates)
                probes = True
        if self._probed is not None:
            self.keeper.copies_batches = self.keeper.copies_batches or not self._probed.is_untouched()
        names = self._names_of(batch)
        moment = take_moment(self.parts.device_type, with_host=probes or watch.draws_on_host)
        micro = MicroBatch(batch, moment, last=last, names=names, copied=probes or self.keeper.copies_batches)
        self._probed = micro if probes else None
        update.add(micro)
        return update

    def loss(self, loss: Tensor) -> Tensor:
        """Report the loss of the micro-batch, before backward and not divided by anything. Returns the loss."""
        self._watch.hear_loss(loss)
        return loss

    def grad_norm(self, norm: Any) -> Any:
        """Report the gradient norm before clipping. Returns the norm. `torch.nn.utils.clip_grad_norm_` is observed automatically."""
        self._watch.hear_norm(norm)
        return norm

    def before_update(self) -> None:
        """Judge the update after backward and before anything changes; events are investigated here."""
        watch, update = self._watch, self._watch.update
        if watch.made_again is not None:
            watch.made_again()
            return
        if watch.is_quiet or update is None or not update.micro or update.rates:
            return
        update.note_rates(self.parts.optimizer)
        losses = update.seen_losses()
        if losses:
            if self._judge(update, losses):
                self.parts.optimizer.zero_grad(set_to_none=True)  # without gradients, an optimizer changes nothing
        elif self.settings.on_event != "record":
            raise SettingError(
                f'on_event="{self.settings.on_event}" needs the loss before the optimiser moves, and nobody says what it is',
                cause="the model does not return it",
                hint="call flight.loss(loss) in the step function, before backward",
            )

    def after_update(self, returned: Any = None) -> None:
        """Record the finished update. `returned` is its loss, if neither the model nor the user provided it before."""
        update, self._watch.update = self._watch.update, None
        if update is None:
            return
        losses = update.seen_losses()
        was_judged = update.rates and losses
        if not update.rates:  # the optimizer was not called: a scaler found an overflow
            update.note_rates(self.parts.optimizer)
            update.skipped = "the optimiser was not called"
        update.autocast = self._watch.autocast
        self.num_updates += 1
        if not losses:
            found = returned_loss(returned)
            losses = [] if found is None else [found]
        if losses and not was_judged:
            update.is_moved = True
            self._judge(update, losses)
        if not losses and not self._has_told:
            self._has_told = True
            _logger.warning("no loss was seen: let the model or the step function return it, or call flight.loss(loss)")
        self._judgement.done(update, has_loss=bool(losses))

    def restore(self) -> int:
        """Resume from the newest kept state, if any, and return its number of updates. Every rank must call this."""
        step = ranks.found_by_rank_0(lambda: self.keeper.store.folder.newest()[0])
        return 0 if step is None or self._is_replay else self._restore(int(step))

    def flush(self) -> None:
        """Judge and write everything that is pending."""
        self._judgement.drain(wait=True)
        self.keeper.flush()

    def close(self) -> None:
        """Stop recording: remove the hooks and write everything. A second call does nothing."""
        atexit.unregister(self.close)
        handles, self._handles = self._handles, []
        if not handles:
            return
        for handle in handles:
            handle.remove()
        self._watch.close()
        self._judgement.drain(wait=True)
        self.keeper.close()

    def _restore(self, step: int) -> int:
        self.parts.restore(self.parts.load(step))
        self.num_updates = step
        self.parts.run.event("resume", step=step)
        return step

    def _go_back_if_called(self) -> None:
        """Between two updates, go back if the last one requires it."""
        healing = self._judgement.healing
        if healing is not None and healing.call is not None:
            self.flush()
            self._judgement.go_back(self._restore(healing.act().checkpoint))
            self.keeper.begin_again()

    def _names_of(self, batch: Any) -> Any:
        if self._sample_ids is not None:
            return self._sample_ids(batch)
        return batch.get("sample_ids") if type(batch) is dict else None

    def _judge(self, update: Update, losses: Sequence[Loss]) -> bool:
        watch = self._watch
        watch.is_quiet = True  # not with `quiet`, which costs more than a microsecond per step
        try:
            norm = norm_of(self.parts.optimizer) if watch.norm is None and self.settings.grad_norm else watch.norm
            return self._judgement.judge(update, losses, norm)
        finally:
            watch.is_quiet = False

    def _begin_unannounced(self, batch: Any) -> None:
        if self._is_replay:
            give_up(SettingError(
                "this loop cannot be replayed in a new process",
                cause="it does not hand its step function to the recorder: hooks alone follow it",
                hint="put all that happens to one batch into a function, and call flight.step(function, batch)",
            ))  # fmt: skip
        if self._watch.update is not None and self._watch.update.is_moved:
            self.after_update()
        self.begin_batch(batch)

    def _begin_anew(self) -> None:
        """At the first update, move aside what an earlier attempt in this directory recorded, so that it is not mixed with this one."""
        run = self.parts.run
        if run.rank == 0 and run.resumed:
            run.begin_attempt()
        ranks.any_rank(False)  # the others wait until the folders have been moved
        if run.rank > 0 and run.resumed:
            run.begin_attempt()

    def _on_step(self, _: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Called before the optimizer step. With a closure, backward is done only after the closure has run."""
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is not None:
            return args[:1], {**kwargs, "closure": _followed(closure, self.before_update)}
        self.before_update()
        return None

    def _on_moved(self, *_: Any) -> None:
        watch, update = self._watch, self._watch.update
        if watch.is_quiet or watch.made_again is not None or update is None:
            return
        update.is_moved = True
        if not watch.is_inside:
            self.after_update()


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer that does the updates: Accelerate wraps it in another, which has no hooks."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _followed(closure: Callable[[], _T], then: Callable[[], None]) -> Callable[[], _T]:
    def run() -> _T:
        result = closure()
        then()
        return result

    return run
