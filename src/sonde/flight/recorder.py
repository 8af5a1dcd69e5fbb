"""`FlightRecorder`: follows a training loop of one's own, judges each update before the optimiser moves, and keeps what a replay needs.

    flight = FlightRecorder(run, model, optimizer, scheduler=scheduler, decode=tokenizer.decode)

    def train_step(batch):                  # all that happens to one batch
        loss = model(**batch).loss
        loss.backward(); clip; optimizer.step(); scheduler.step(); optimizer.zero_grad()
        return loss

    for batch in loader:
        loss = flight.step(train_step, batch)

An update passes through five moments, which a host (integrations/) calls itself where it has no step function:

    begin_batch      a micro-batch begins: it is held, with the generators and the autocast of the moment
    loss             its loss is known; taken from what the model returns, if nobody says
    before_update    backward is done, nothing has moved: the update is judged, and an event is investigated at the scene
    after_update     it is recorded
    takeover         in a replay (`run.is_replay`): instead of the first update, what the replay was asked for

Training watched equals training unwatched, bit for bit. It costs 20 µs of the calling thread's CPU a step (benchmarks/flight.py).
"""

import atexit
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, final

import torch
from torch import Tensor, nn

from sonde import ranks
from sonde.errors import SettingError
from sonde.flight import gradient_norm
from sonde.flight.again import Again, LossSeen, loss_in
from sonde.flight.batch_tree import tokens_of
from sonde.flight.judgement import Judgement
from sonde.flight.keeper import Keeper
from sonde.flight.moment import host_generators, same_generators, take_moment
from sonde.flight.ring import Forward, HeldBatch, MicroBatch, Update
from sonde.flight.scene import Scene
from sonde.flight.settings import FlightSettings
from sonde.flight.training_state import TrainingState
from sonde.run import Run
from sonde.train.state import Stateful

_T = TypeVar("_T")
_NUM_CHECKED: Final = 3
"""Micro-batches at the beginning that are looked at for draws from python's and numpy's generators."""

_logger = logging.getLogger("sonde")


@final
class FlightRecorder:
    """Rides along with one training. `close` it at the end, or close its run."""

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
        """`model` is what the loop calls: wrapped and compiled, if it is.

        `decode` makes text of tokens. `sample_ids` names the samples of a batch: numbers, or pairs of dataset and number; a batch that is a
        dict may hold them under that name. `named` is everything else with a `state_dict` that the training depends on: scheduler, scaler.
        """
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise SettingError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
        self.run = run
        self.settings = settings or FlightSettings()
        self.num_updates = 0
        """Updates made."""
        self.model = model
        self.optimizer = optimizer
        self._device_type = next(model.parameters()).device.type
        self._sample_ids = sample_ids
        self.again = Again(model, self._device_type)
        """Makes forwards again, at the scene of an event and in a replay."""
        self._judgement = Judgement(run, self.settings)
        self.state = TrainingState(model, optimizer, {**named, "sonde": self._judgement.spikes})
        """What is kept and restored."""
        self.keeper = Keeper(run, self.state, self.settings)
        """Keeps states and batches."""
        self._judgement.keeper = self.keeper
        self._judgement.scene = Scene(model, optimizer, self.again, settings=self.settings, decode=decode)
        self._update: Update | None = None
        self._norm: Any = None
        self._is_inside = False
        self._is_quiet = False
        self._draws_on_host = False
        self._num_checked = 0
        self._has_told = False
        self._handles = [
            model.register_forward_pre_hook(self._on_forward, with_kwargs=True),
            model.register_forward_hook(self._on_output, with_kwargs=True),
            optimizer.register_step_pre_hook(lambda *_: self.before_update()),
            optimizer.register_step_post_hook(lambda *_: self._on_moved()),
        ]
        self._stop_listening = gradient_norm.listen(self.grad_norm)
        run.closing.append(self.close)
        atexit.register(self.close)

    def step(self, train_step: Callable[..., _T], batch: Any, *, last: bool | None = None) -> _T:
        """Call `train_step(batch)`, all that happens to one batch, and record it; returns what it returned.

        With gradient accumulation say which micro-batch is the last of its update: `train_step(batch, last)` is called then, and
        moves the optimiser when `last` is true.
        """
        if self.run.is_replay:
            self.takeover(train_step, batch)
        self.again.step_function = train_step
        self.begin_batch(batch, last=last)
        micro = self._update.micro[-1] if self._update else None
        self._is_inside = True
        try:
            result = train_step(batch) if last is None else train_step(batch, last)
        finally:
            self._is_inside = False
        if micro is not None and micro.moment.host is not None and not self._draws_on_host:
            self._draws_on_host = not same_generators(micro.moment.host, host_generators())
        update = self._update
        if update is not None and (last or (last is None and update.is_moved)):
            self.after_update(result)
        return result

    def takeover(self, train_step: Callable[..., Any], batch: Any) -> None:
        """In a replay: do what was asked for, with the script's own step function, and end the process."""
        raise NotImplementedError

    def begin_batch(self, batch: Any, *, last: bool | None = None) -> None:
        """A micro-batch begins; the first one of an update begins the update."""
        update = self._update
        checks = self._draws_on_host or self._num_checked < _NUM_CHECKED
        self._num_checked += checks
        if update is None:
            self._norm = None
            update = self._update = Update(self.num_updates + 1, had_gradients=self._has_gradients())
            if self.keeper.is_due(self.num_updates):
                with self._quiet():
                    self.keeper.keep_state(self.num_updates)
                checks = True
        names = (
            self._sample_ids(batch) if self._sample_ids else batch.get("sample_ids") if type(batch) is dict else None
        )
        held = HeldBatch(batch, copied=self.settings.keep_batches)
        update.micro.append(MicroBatch(held, take_moment(self._device_type, with_host=checks), last=last, names=names))
        tokens = tokens_of(batch)
        update.num_tokens += 1 if tokens is None else tokens.numel()

    def loss(self, loss: Tensor) -> Tensor:
        """Say what the loss of the micro-batch is, before backward and not divided by anything; returns it."""
        if self.again.is_running:
            raise LossSeen(loss.detach())
        if not self._is_quiet and self._update is not None and self._update.micro:
            self._update.micro[-1].losses.append(loss.detach())
        return loss

    def grad_norm(self, norm: Any) -> Any:
        """Say what the gradient norm before clipping is; returns it. `torch.nn.utils.clip_grad_norm_` is overheard."""
        if not self._is_quiet:
            self._norm = norm
        return norm

    def before_update(self) -> None:
        """Backward is done and nothing has moved: judge the update; an event is investigated here."""
        update = self._update
        if self._is_quiet or update is None or not update.micro or update.rates:
            return
        self._note_rates(update)
        losses = [loss for one in update.micro for loss in one.seen_losses()]
        if losses:
            with self._quiet():
                if self._judgement.judge(update, losses, self._gradient_norm()):
                    self.optimizer.zero_grad(set_to_none=True)  # without gradients an optimiser moves nothing
        elif self.settings.on_event != "record":
            raise SettingError(
                f'on_event="{self.settings.on_event}" needs the loss before the optimiser moves, and nobody says what it is',
                cause="the model does not return it",
                hint="call flight.loss(loss) in the step function, before backward",
            )

    def after_update(self, returned: Any = None) -> None:
        """The update is done: record it. `returned` is its loss, where neither the model nor the user gave it before."""
        update, self._update = self._update, None
        if update is None:
            return
        losses = [loss for one in update.micro for loss in one.seen_losses()]
        was_judged = bool(update.rates and losses)
        if not update.rates:  # the optimiser was not called: a scaler found an overflow
            self._note_rates(update)
            update.skipped = "the optimiser was not called"
        self.num_updates += 1
        if not losses:
            found = returned if isinstance(returned, (Tensor, float)) else loss_in(returned)
            losses = [] if found is None else [torch.as_tensor(found).detach()]
        if losses and not was_judged:
            update.is_moved = True
            with self._quiet():
                self._judgement.judge(update, losses, self._gradient_norm())
        if not losses and not self._has_told:
            self._has_told = True
            _logger.warning("no loss was seen: let the model or the step function return it, or call flight.loss(loss)")
        self._judgement.done(update, has_loss=bool(losses))

    def restore(self) -> int:
        """Go on from the newest kept state, if there is one; returns how many updates it has made. Every rank must call it."""
        folder = self.keeper.store.folder
        step, _ = folder.newest() if ranks.rank() == 0 else (None, [])
        step = ranks.gather(step)[0]
        if step is None or self.run.is_replay:
            return 0
        with self._quiet():
            saved = self.load_state(step)
            self.state.restore(saved)
        self.num_updates = step
        self.run.event("restored", step=step)
        return int(step)

    def load_state(self, step: int) -> dict[str, Any]:
        """A kept state. Every rank must call it."""
        with self._quiet():
            document = self.keeper.store.folder.document(step)["state"]
            has_moments = bool(document.get("optimizer", {}).get("state"))
            return self.keeper.store.load(step, self.state.template(has_moments=has_moments))

    def flush(self) -> None:
        """Judge and write everything that has been handed over."""
        self._judgement.drain(wait=True)
        self.keeper.flush()

    def close(self) -> None:
        """End the watch: hooks are taken off, everything is written. A second call does nothing."""
        atexit.unregister(self.close)
        handles, self._handles = self._handles, []
        if not handles:
            return
        for handle in handles:
            handle.remove()
        self._stop_listening()
        self._judgement.drain(wait=True)
        self.keeper.close()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Within the block, hooks take no notice."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_quiet or not module.training or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if not self._is_inside:
            if self._update is not None and self._update.is_moved:
                self.after_update()
            self.begin_batch(kwargs if not args else args[0] if len(args) == 1 and not kwargs else args)
        if self._update is not None and self._update.micro:
            moment = take_moment(self._device_type, with_host=self._draws_on_host)
            self._update.micro[-1].forwards.append(Forward(args, kwargs, moment))

    def _on_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        del args, kwargs
        if self._is_quiet or not module.training or torch.compiler.is_compiling() or self._update is None:
            return
        loss = loss_in(output)
        if loss is not None and self._update.micro and self._update.micro[-1].forwards:
            self._update.micro[-1].forwards[-1].loss = loss.detach()

    def _on_moved(self) -> None:
        if self._is_quiet or self._update is None:
            return
        self._update.is_moved = True
        if not self._is_inside:
            self.after_update()

    def _note_rates(self, update: Update) -> None:
        update.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        update.lr = update.rates[0]

    def _gradient_norm(self) -> Any:
        if self._norm is None and self.settings.grad_norm:
            gradients = [
                one.grad for group in self.optimizer.param_groups for one in group["params"] if one.grad is not None
            ]
            return torch.nn.utils.get_total_norm(gradients)
        return self._norm

    def _has_gradients(self) -> bool:
        return any(one.grad is not None for one in self.optimizer.param_groups[0]["params"][:1])
