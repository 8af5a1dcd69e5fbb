"""The training that a recorder follows: its parts, its state, and how its forward passes are
repeated.

A forward pass is repeated bit for bit while training stands still. If the model returned the loss,
the model is called again with the same arguments. If the user reported the loss, or it is what
backward was called on, the step function is run again up to that point.

The state consists of model, optimizer, named objects, and the generators of every rank. The states
of model and optimizer are saved as they are: complete, or this rank's shards (FSDP2, tensor
parallel). Collecting them changes nothing. In a replay, a training is the source of states.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from sonde import ranks
from sonde.checkpoint.resume_report import ResumeReport
from sonde.checkpoint.store import CheckpointStore
from sonde.errors import RunError
from sonde.recorder import losses as found_losses
from sonde.recorder.accumulation import counts_batches, expect_micro_batch
from sonde.recorder.batch_tree import num_rows
from sonde.recorder.hooks import NOBODY, Hooks, Observer, OptimizerMoves
from sonde.recorder.losses import LossSeen, RowLosses, TokenLossCapture
from sonde.recorder.moment import Moment, back_at
from sonde.recorder.options import RecorderOptions
from sonde.recorder.put_back import standing_still
from sonde.recorder.reach import moves_by_itself, reached
from sonde.recorder.scaler import find_scalers
from sonde.recorder.update import Loss, MicroBatch, Update, noted
from sonde.run import Run
from sonde.train.determinism import generators
from sonde.train.saving import Stateful, check_state, set_generators_of_rank

StatefulT = TypeVar("StatefulT", bound=Stateful)

_logger = logging.getLogger("sonde")


class UntilLoss(Observer):
    """Ends a step function that is run again as soon as its loss is known."""

    def __init__(self, loss_from: str, *, keeps_graph: bool = False) -> None:
        """`loss_from`: the loss is "told" by the user, "returned" by the model, or what "backward"
        is called on. With `keeps_graph`, it is carried out as a tensor that backward can be called
        on.
        """
        self.loss_from = loss_from
        self._keeps_graph = keeps_graph

    def loss_reported(self, loss: Tensor, token_losses: Tensor | None = None) -> None:
        """Carry the loss out of the step function."""
        if self.loss_from == "told":
            raise LossSeen(loss if self._keeps_graph else noted(loss), token_losses)

    def forward_ends(self, output: Any) -> None:
        """Carry the loss out of the step function."""
        if self.loss_from == "returned":
            loss = found_losses.loss_in(output)
            if loss is not None:
                raise LossSeen(loss if self._keeps_graph else noted(loss))

    def backward_begins(self, loss: Tensor) -> None:
        """Carry the loss out of the step function."""
        if self.loss_from == "backward":
            raise LossSeen(loss if self._keeps_graph else noted(loss))


class Training:
    """Model, optimizer and everything else that a training depends on."""

    def __init__(
        self,
        run: Run,
        options: RecorderOptions,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        named: dict[str, Stateful],
        decode: Callable[[list[int]], str] | None,
    ) -> None:
        """`named` is everything else that has a state; `decode` converts tokens to text. Every rank
        must create one.
        """
        self.run = run
        self.options = options
        self.model = model
        self.optimizer = optimizer
        self.named = named
        self.decode = decode
        self.device_type = _device_type(model, optimizer)
        self.hooks = Hooks(model)
        """What sees the training."""
        self.is_compiled = found_losses.is_compiled(model)
        self.step_function: Callable[..., Any] | None = None
        """The step function that processes the micro-batches, if the user passed one."""
        self.resume_report: ResumeReport | None = None
        """What this process found when it resumed; None if it has not."""
        self.is_repeatable = True
        """Whether steps may be run again; False once that was found to change something."""
        # Only rank 0 is sure to find the manifest, because it has just written it.
        run_id: str | None = ranks.gather(run.manifest.run_id if run.rank == 0 else None)[0]
        self.store = CheckpointStore(run.layout.kept_states, run_id=run_id)
        """Where states are kept."""
        self.is_sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
        """Whether every rank has only a part of the weights."""
        self.autocast: torch.dtype | None = None
        """The precision of the last forward pass under autocast that was seen."""
        self.backward_factor = 1.0
        """How many times the loss is as large as what backward is called on, if it is that."""
        self._waiting: dict[str, Any] = {}
        self._accelerators: list[Any] | None = None
        self._reported_tokens: Tensor | None = None
        self._scalers: list[torch.amp.GradScaler] = []
        self._scalers_of: Callable[..., Any] | None = None

    def add(self, name: str, part: StatefulT) -> StatefulT:
        """Add another stateful object; if its state was already restored, it is loaded now."""
        if name in self._waiting:
            part.load_state_dict(self._waiting.pop(name))
        self.named[name] = part
        return part

    def is_moved_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer that is not ours moves the model, and nobody named it."""
        if any(part is optimizer for part in self.named.values()):
            return False
        own = {id(parameter) for parameter in self.model.parameters()}
        groups = optimizer.param_groups
        return any(id(parameter) in own for group in groups for parameter in group["params"])

    def call(self, batch: Any, last: bool | None, *, completes_update: bool = True) -> Any:
        """Call the step function with a batch that was recorded, and with `last` if it expects
        it.
        """
        assert self.step_function is not None
        if self._accelerators is None:
            self._accelerators = [*filter(counts_batches, reached(self.step_function))]
        expect_micro_batch(self._accelerators, completes_update=completes_update)
        return self.step_function(batch) if last is None else self.step_function(batch, last)

    def eager(self) -> AbstractContextManager[object]:
        """Run a compiled model as it is written within a block, so that single operations can be
        observed and nothing is compiled again.
        """
        return _as_written() if self.is_compiled else nullcontext()

    @contextmanager
    def standing_still(self, updates: Sequence[Update] = ()) -> Iterator[None]:
        """Allow forward passes within a block that leaves no trace, also with the batches of some
        updates.
        """
        still = standing_still(
            self.model,
            self.optimizer,
            self.step_function,
            batches=[micro.batch for update in updates for micro in update.micro],
            is_compiled=self.is_compiled,
        )
        with self.hooks.standing_still(), still:
            yield

    def can_repeat(self, micro: MicroBatch) -> bool:
        """Return whether the forward pass of a micro-batch can be repeated."""
        if not self.is_repeatable or micro.tree.problem or not micro.is_unchanged():
            return False
        if not micro.has_its_parts():
            return False
        if not micro.losses:
            return bool(micro.seen_losses())
        return self.step_function is not None

    def find_what_cannot_be_put_back(self) -> None:
        """Give up repeating steps if they reach something that moves by itself. To be called before
        each look, since it follows every name.
        """
        roots = [self.model] if self.step_function is None else [self.model, self.step_function]
        self.is_compiled = self.is_compiled or found_losses.reaches_compiled(roots)
        if self.is_repeatable and moves_by_itself(*roots):
            self._give_up_repeating("it reaches an iterator, a queue or a thread")

    def _give_up_repeating(self, reason: str) -> None:
        self.is_repeatable = False
        _logger.info("steps are not run again in this run: %s", reason)

    def loss_again(self, micro: MicroBatch) -> float | None:
        """Repeat the forward pass of a micro-batch and return its loss. Use it inside
        `standing_still`.
        """
        if micro.losses:
            return self.run_to_loss(micro.batch, micro.last, micro.moment, micro.loss_from)
        found = []
        with self.hooks.observed_by(NOBODY):
            for forward in micro.forwards:
                if forward.loss is None:
                    continue
                with back_at(forward.moment, self.device_type):
                    loss = found_losses.loss_in(self.model(*forward.args, **forward.kwargs))
                if loss is not None:
                    found.append(noted(loss))
        return found_losses.mean_loss(found)

    def run_to_loss(
        self, batch: Any, last: bool | None, moment: Moment, loss_from: str
    ) -> float | None:
        """Run the step function up to its loss and return it; None if it ends without one."""
        seen = self._until_loss(batch, last, moment, UntilLoss(loss_from))
        if seen is None:
            return None
        self._reported_tokens = seen.token_losses
        return float(seen.loss)

    def _until_loss(
        self, batch: Any, last: bool | None, moment: Moment, observer: UntilLoss
    ) -> LossSeen | None:
        try:
            with self.hooks.observed_by(observer), back_at(moment, self.device_type):
                self.call(batch, last)
        except LossSeen as seen:
            if observer.loss_from == "backward":
                seen.loss = self.loss_of_backward(seen.loss)
            return seen
        except OptimizerMoves:
            self._give_up_repeating("a step moves an optimizer before its loss is known")
        return None

    def loss_of_backward(self, loss: Loss) -> Loss:
        """Return the loss of a micro-batch from what backward is called on: that is multiplied by a
        gradient scaler, and may be divided by the number of micro-batches.
        """
        factor = self.backward_factor / self.loss_scale()
        return loss if factor == 1.0 else loss * factor

    def loss_with_graph(self, micro: MicroBatch) -> Tensor | None:
        """Repeat the forward pass of a micro-batch and return its loss as a tensor that backward
        can be called on. Use it inside `standing_still`.
        """
        if self.step_function is not None:
            observer = UntilLoss(micro.loss_from, keeps_graph=True)
            seen = self._until_loss(micro.batch, micro.last, micro.moment, observer)
            return seen.loss if seen is not None and isinstance(seen.loss, Tensor) else None
        for forward in micro.forwards:
            with self.hooks.observed_by(NOBODY), back_at(forward.moment, self.device_type):
                return found_losses.loss_in(self.model(*forward.args, **forward.kwargs))
        return None

    def scalers(self) -> list[torch.amp.GradScaler]:
        """Return the gradient scalers of the training: those that the user named, and those that
        the step function uses.
        """
        if self._scalers_of is not self.step_function or self.step_function is None:
            self._scalers_of = self.step_function
            self._scalers = find_scalers(self.named.values(), self.step_function)
        return self._scalers

    def loss_scale(self) -> float:
        """Return the factor by which a gradient scaler multiplies the loss; 1 without one."""
        for scaler in self.scalers():
            return float(scaler.get_scale())
        return 1.0

    def rows_again(
        self, forward: Callable[[], object], batch: Any, moment: Moment
    ) -> list[RowLosses]:
        """Return the token losses of a batch by row: observed while `forward` runs, reported with
        its loss, or computed by the user's function.

        Empty if they are not available.
        """
        with self.eager():
            given = self.options.token_losses
            if given is not None:
                with back_at(moment, self.device_type), torch.no_grad():
                    return found_losses.rows_given(given(batch), batch)
            self._take_reported_tokens()  # those of an earlier forward
            with TokenLossCapture() as capture:
                forward()
        reported = self._take_reported_tokens()
        if reported is not None:
            return found_losses.rows_given(reported, batch)
        return found_losses.rows_of(capture.found, num_rows(batch))

    def _take_reported_tokens(self) -> Tensor | None:
        """Return the token losses that came with the last loss, once."""
        reported = self._reported_tokens
        self._reported_tokens = None
        return reported

    def steps(self) -> list[int]:
        """Return the number of updates of each kept state."""
        return self.store.folder.steps()

    def is_good(self, step: int) -> bool:
        """Return whether every byte of a kept state verifies."""
        return not self.store.folder.problems(step)

    def collect(self) -> dict[str, Any]:
        """Return the current state; its tensors are not copied. Every rank must call this."""
        return {**self.collect_own(), "ranks": ranks.gather(generators())}

    def collect_own(self) -> dict[str, Any]:
        """Return the current state without the generators, which only all ranks together know."""
        with self.hooks.observed_by(NOBODY):
            return {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "named": {name: part.state_dict() for name, part in self.named.items()},
            }

    def load(self, step: int) -> dict[str, Any]:
        """Load a kept state; for sharded weights, this rank's part. Every rank must call this.

        Sharded tensors are loaded into a state of the same shape. An optimizer without any step has
        no moments yet; torch makes them when it is asked for its state.
        """
        if not self.is_sharded:
            return self.store.load(step)
        with self.hooks.observed_by(NOBODY):
            kept = self.store.folder.document(step)["state"].get("optimizer")
            if isinstance(kept, dict) and kept.get("state") and not self.optimizer.state:
                get_optimizer_state_dict(self.model, self.optimizer)
            template = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            return self.store.load(step, template)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, all of it or nothing; its tensors may be taken over.

        With a different number of ranks, new ones get rank 0's generators.
        """
        hint = "only what a Recorder kept can be restored"
        check_state(state, "this is no kept state of a training", hint)
        with self.hooks.observed_by(NOBODY):
            self._check_fit(state)
            self._restore_named(dict(state.get("named", {})))
            self.optimizer.load_state_dict(state["optimizer"])
            self.model.load_state_dict(state["model"])
        set_generators_of_rank(state["ranks"])

    def _check_fit(self, state: Mapping[str, Any]) -> None:
        """Raise before anything is changed if the state is not one of this training."""
        problem = _model_problem(self.model, state["model"]) or _optimizer_problem(
            self.optimizer, state["optimizer"]
        )
        if problem:
            raise RunError(
                f"the kept state does not fit this training: {problem}",
                cause="nothing was restored",
                hint="build model and optimizer as when the state was kept, or start a new run",
            )

    def _restore_named(self, states: dict[str, Any]) -> None:
        """Restore the named objects; if one refuses, the others get their old states back."""
        for name in sorted(self.named.keys() - states.keys() - {"data"}):
            _logger.warning("the kept state has no %r: it stays as the script made it", name)
        before: list[tuple[Stateful, Any]] = []
        try:
            for name, part in self.named.items():
                if name in states:
                    before.append((part, copy.deepcopy(part.state_dict())))
                    part.load_state_dict(states.pop(name))
        except Exception as error:
            for part, old in before:
                part.load_state_dict(old)
            raise RunError(
                f"the kept state of {name!r} cannot be loaded: {error}",
                cause="nothing was restored",
                hint="pass the same objects by the same names as when the state was kept",
            ) from error
        self._waiting = states


def is_initialised(model: nn.Module) -> bool:
    """Return whether all weights and buffers have a shape: those of lazy modules get theirs in the
    first forward pass.
    """
    return not any(map(is_lazy, chain(model.parameters(), model.buffers())))


@contextmanager
def _as_written() -> Iterator[None]:
    with ExitStack() as stack:
        with suppress(RuntimeError):  # a step function that is compiled itself is running
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _device_type(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the kind of device that a training runs on."""
    parameters = [*model.parameters()]
    for group in optimizer.param_groups:
        parameters += group["params"]
    kinds = [parameter.device.type for parameter in parameters if not parameter.is_meta]
    return kinds[0] if kinds else "cpu"


def _model_problem(model: nn.Module, state: Mapping[str, Any]) -> str:
    """Return why a state dict does not fit a model; empty if it does."""
    own = model.state_dict()
    missing = sorted(own.keys() - state.keys())
    surplus = sorted(state.keys() - own.keys())
    if missing:
        return f"it has no {missing[0]} ({len(missing)} missing)"
    if surplus:
        return f"the model has no {surplus[0]} ({len(surplus)} too many)"
    for name, value in own.items():
        there = state[name]
        if isinstance(value, Tensor) and isinstance(there, Tensor) and value.shape != there.shape:
            return f"{name} has shape {list(there.shape)}, the model's has {list(value.shape)}"
    return ""


def _optimizer_problem(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> str:
    """Return why a state dict does not fit an optimizer; empty if it does."""
    own = optimizer.param_groups
    there = state["param_groups"]
    if len(own) != len(there):
        return f"its optimizer has {len(there)} parameter groups, this one {len(own)}"
    for number, (group, kept) in enumerate(zip(own, there, strict=True)):
        if len(group["params"]) != len(kept["params"]):
            return (
                f"group {number} of its optimizer has {len(kept['params'])} parameters, here"
                f" {len(group['params'])}"
            )
        missing = sorted(optimizer.defaults.keys() - kept.keys())
        if missing:
            return f"it was kept by another kind of optimizer, without {missing[0]!r}"
    return ""
