"""One training: the hooks that observe its loop, how to repeat its forward passes, its state, and how to restore it.

`LoopWatch` observes through public torch hooks: the model's inputs, the loss it returns, and the norm that clipping
computes. What is observed is stored in the current update. Nothing is recorded while `quiet`. While an update is
replayed, `made_again` is called before the optimizer step.

The norm is that of the user's own clipping: while a recorder is open, `torch.nn.utils.clip_grad_norm_` is wrapped; it
works as before, and its result is recorded. A loop that imported the function by name earlier is not observed; it can
call `flight.grad_norm(norm)`.

A forward pass is repeated bit for bit while training is paused. If the model returned the loss, the model is called
again with the same arguments. If the user reported the loss, the step function is run again up to that point.

The state of a `Training` consists of model, optimizer, named objects, and the generators of every rank. The states of
model and optimizer are saved as they are: complete, or this rank's shards (FSDP2, tensor parallel). Collecting them
changes nothing. In a replay, it is the source of states.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad

from sonde import ranks
from sonde.checkpoint.store import CheckpointStore
from sonde.flight import again
from sonde.flight.batch_tree import num_rows
from sonde.flight.ring import Forward, MicroBatch, Moment, Update, back_at, noted, take_moment
from sonde.flight.settings import FlightSettings
from sonde.run import Run
from sonde.train.determinism import generators
from sonde.train.saving import Stateful, check_state, set_generators_of_rank

StatefulT = TypeVar("StatefulT", bound=Stateful)

_listeners: list[Callable[[Any], None]] = []


def _listen(listener: Callable[[Any], None]) -> None:
    """Call `listener` with every norm."""
    if not _listeners:
        original = clip_grad.clip_grad_norm_

        @functools.wraps(original)
        def overheard(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            for one in _listeners:
                one(norm)
            return norm

        clip_grad.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = overheard
    _listeners.append(listener)


def _stop_listening(listener: Callable[[Any], None]) -> None:
    if listener in _listeners:
        _listeners.remove(listener)
        if not _listeners:
            original = clip_grad.clip_grad_norm_.__wrapped__  # type: ignore[attr-defined]  # set by functools.wraps
            clip_grad.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = original


def norm_of(optimizer: torch.optim.Optimizer) -> Tensor:
    """Return the norm of all gradients of an optimizer's parameters."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])


class LoopWatch:
    """Hooks into model and optimizer: it sees the loss, the gradient norm and the random state of every update."""

    def __init__(self, model: nn.Module, device_type: str, *, wants_rows: bool) -> None:
        """`wants_rows`: also record the losses of single rows."""
        self._device_type = device_type
        self.update: Update | None = None
        """The current update."""
        self.norm: Any = None
        """The last observed gradient norm."""
        self.is_inside = False
        """Whether a step function passed by the user is running."""
        self.is_quiet = False
        """Whether recording is paused."""
        self.draws_on_host = False
        """Whether steps draw from Python's or numpy's generators."""
        self.begin: Callable[[Any], None] = lambda _: None
        """Called when a forward pass begins outside a step function."""
        self.made_again: Callable[[], None] | None = None
        """Called before the optimizer step while an update is replayed."""
        self.stops_at = ""
        """What ends a repeated step function: the loss "told" by the user or "returned" by the model. Empty if none is running."""
        self.autocast: torch.dtype | None = None
        """The autocast precision of a forward pass, if any."""
        self._wants_rows = wants_rows
        self._is_compiled = again.is_compiled(
            model
        )  # then no hook may be removed, because the model would be recompiled
        self._is_told = False  # whether the loop reports its loss
        self._handles = [
            model.register_forward_pre_hook(self._on_forward, with_kwargs=True),
            model.register_forward_hook(self._on_output, with_kwargs=True, always_call=True),
        ]
        _listen(self.hear_norm)

    def close(self) -> None:
        """Remove the hooks."""
        self._stop_following()
        _stop_listening(self.hear_norm)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Record nothing within the block."""
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    @contextmanager
    def making_again(self, update: Update | None, before_step: Callable[[], None]) -> Iterator[None]:
        """Replay an update within the block: it receives what is observed, and `before_step` is called before the optimizer step."""
        self.update, self.made_again, self.norm, self.is_inside = update, before_step, None, True
        try:
            yield
        finally:
            self.update, self.made_again, self.is_inside = None, None, False

    def hear_loss(self, loss: Tensor) -> None:
        """Receive the loss that the user reports."""
        if self.stops_at == "told":
            raise again.LossSeen(noted(loss))
        self._is_told = True
        if self.is_inside and self.made_again is None and not self._is_compiled:
            self._stop_following()
        if not self.is_quiet and self.update is not None and self.update.micro:
            self.update.micro[-1].losses.append(noted(loss))
            self._note_rows(loss)

    def hear_norm(self, norm: Any) -> None:
        """Receive a gradient norm."""
        if not self.is_quiet:
            self.norm = norm

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.is_quiet or not module.training or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if not self.is_inside:
            self.begin(kwargs if not args else args[0] if len(args) == 1 and not kwargs else args)
        update = self.update
        if update is None or not update.micro:
            return
        if torch.is_autocast_enabled(self._device_type):
            self.autocast = torch.get_autocast_dtype(self._device_type)
        if not self._is_told:  # otherwise what the model returned is not needed
            moment = take_moment(self._device_type, with_host=self.draws_on_host)
            update.micro[-1].forwards.append(Forward(args, kwargs, moment))

    def _on_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        del args, kwargs
        if self.is_quiet or self._is_told or not module.training or torch.compiler.is_compiling():
            return
        loss = again.loss_in(output)
        if loss is None:
            return
        if self.stops_at == "returned":
            raise again.LossSeen(noted(loss))
        if self.update is not None and self.update.micro and self.update.micro[-1].forwards:
            self.update.micro[-1].forwards[-1].loss = noted(loss)
            self._note_rows(loss)

    def _note_rows(self, loss: Tensor) -> None:
        if self._wants_rows and self.update is not None:
            micro = self.update.micro[-1]
            micro.rows = again.row_means(loss, micro.num_rows) or micro.rows

    def _stop_following(self) -> None:
        """Remove the hooks from the model: a step function that reports its loss is repeated itself, and hooks cost at every forward."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class Training:
    """The training that a recorder follows, and what observes, repeats and keeps it."""

    def __init__(
        self,
        run: Run,
        settings: FlightSettings,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        named: dict[str, Stateful],
        decode: Callable[[list[int]], str] | None,
    ) -> None:
        """`named` is everything else that has a state; `decode` converts tokens to text. Every rank must create one."""
        self.run = run
        self.settings = settings
        self.model = model
        self.optimizer = optimizer
        self.named = named
        self.decode = decode
        self.device_type = next(model.parameters()).device.type
        self.step_function: Callable[..., Any] | None = None
        """The step function that processes the micro-batches, if the user passed one."""
        self.watch = LoopWatch(model, self.device_type, wants_rows=settings.sample_losses)
        """The hooks that observe the training loop."""
        # Only rank 0 is sure to find the manifest, because it has just written it.
        run_id: str | None = ranks.gather(run.manifest.run_id if run.rank == 0 else None)[0]
        self.store = CheckpointStore(run.layout.kept_states, run_id=run_id)
        """Where states are kept."""
        self.is_sharded = any(isinstance(one, DTensor) for one in model.parameters())
        """Whether every rank has only a part of the weights."""
        self._waiting: dict[str, Any] = {}

    def add(self, name: str, part: StatefulT) -> StatefulT:
        """Add another stateful object; if its state was already restored, it is loaded now."""
        if name in self._waiting:
            part.load_state_dict(self._waiting.pop(name))
        self.named[name] = part
        return part

    def call(self, batch: Any, last: bool | None) -> Any:
        """Call the step function with a batch, and with `last` if it expects it."""
        assert self.step_function is not None
        return self.step_function(batch) if last is None else self.step_function(batch, last)

    def can_repeat(self, micro: MicroBatch) -> bool:
        """Return whether the forward pass of a micro-batch can be repeated."""
        is_possible = self.step_function is not None if micro.losses else bool(micro.seen_losses())
        return is_possible and micro.is_unchanged()

    def loss_again(self, micro: MicroBatch) -> float | None:
        """Repeat the forward pass of a micro-batch and return its loss. Use it inside `standing_still`."""
        if micro.losses:
            return self.run_to_loss(micro.batch, micro.last, micro.moment, "told")
        found = []
        for forward in micro.forwards:
            if forward.loss is not None:
                with back_at(forward.moment, self.device_type):
                    loss = again.loss_in(self.model(*forward.args, **forward.kwargs))
                found += [] if loss is None else [noted(loss)]
        return again.mean_loss(found)

    def run_to_loss(self, batch: Any, last: bool | None, moment: Moment, loss_from: str) -> float | None:
        """Run the step function up to its loss and return it; None if it ends without one."""
        self.watch.stops_at = loss_from
        try:
            with back_at(moment, self.device_type):
                self.call(batch, last)
        except again.LossSeen as seen:
            return float(seen.loss)
        finally:
            self.watch.stops_at = ""
        return None

    def rows_again(self, forward: Callable[[], object], batch: Any, moment: Moment) -> list[again.RowLosses]:
        """Return the token losses of a batch by row, observed while `forward` runs or computed by the user's function.

        Empty if they are not available.
        """
        # A compiled model runs in eager mode, so that single operations can be observed and nothing is recompiled.
        with torch.compiler.set_stance("force_eager") if again.is_compiled(self.model) else nullcontext():
            if self.settings.token_losses is not None:
                with back_at(moment, self.device_type), torch.no_grad():
                    return again.rows_given(self.settings.token_losses(batch), batch)
            with again.TokenWatch() as watch:
                forward()
        return again.rows_of(watch.found, num_rows(batch))

    def steps(self) -> list[int]:
        """Return the number of updates of each kept state."""
        return self.store.folder.steps()

    def is_good(self, step: int) -> bool:
        """Return whether every byte of a kept state verifies."""
        return not self.store.folder.problems(step)

    def collect(self) -> dict[str, Any]:
        """Return the current state; its tensors are not copied. Every rank must call this."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "named": {name: one.state_dict() for name, one in self.named.items()},
            "ranks": ranks.gather(generators()),
        }

    def load(self, step: int) -> dict[str, Any]:
        """Load a kept state; for sharded weights, this rank's part. Every rank must call this.

        Sharded tensors are loaded into a state of the same shape. An optimizer without any step has no moments yet;
        torch makes them when it is asked for its state.
        """
        if not self.is_sharded:
            return self.store.load(step)
        with self.watch.quiet():
            kept = self.store.folder.document(step)["state"].get("optimizer")
            if isinstance(kept, dict) and kept.get("state") and not self.optimizer.state:
                get_optimizer_state_dict(self.model, self.optimizer)
            template = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            return self.store.load(step, template)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state; its tensors may be taken over. With a different number of ranks, new ones get rank 0's generators."""
        hint = "only what a FlightRecorder kept can be restored"
        check_state(state, "this is no kept state of a training", hint)
        with self.watch.quiet():
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self._waiting = dict(state.get("named", {}))
            for name, part in self.named.items():
                if name in self._waiting:  # an object that was not saved keeps its state
                    part.load_state_dict(self._waiting.pop(name))
        set_generators_of_rank(state["ranks"])
