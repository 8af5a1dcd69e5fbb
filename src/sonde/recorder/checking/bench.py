"""The first batches of a training on the bench: they are run through the user's own step function
as often as an experiment needs, up to the first backward pass, up to the optimizer's step, or as
whole updates, and everything is put back each time.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from sonde import ranks
from sonde.recorder.batch_tree import flatten, num_rows, rebuild
from sonde.recorder.checking.forward_watch import BackwardReached, ForwardWatch, Look
from sonde.recorder.checking.snapshot import Reach, undone
from sonde.recorder.hooks import Observer
from sonde.recorder.losses import returned_loss
from sonde.recorder.moment import Moment, back_at
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch

MAX_SECONDS: Final = 120.0
"""How long the experiments may take; those that do not fit say so."""


class Feed(NamedTuple):
    """One micro-batch that the step function was given, kept by value."""

    plain: Mapping[str, Any]
    """Where each tensor belongs (batch_tree.py)."""
    tensors: Sequence[Tensor]
    template: Any
    """The batch itself, which the step may have changed since."""
    moment: Moment
    last: bool | None

    def batch(self, tensors: Sequence[Tensor] | None = None) -> Any:
        """Build the batch anew, with its own tensors or others."""
        leaves = tensors if tensors is not None else [tensor.clone() for tensor in self.tensors]
        return rebuild(self.plain, leaves, self.template)

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """Return the tensors of a batch that is a dict, by their keys."""
        found = []
        for key, inner in self.plain.get("d", ()):
            place = inner.get("t", inner.get("n"))
            if place is not None:
                found.append((str(key), self.tensors[place]))
        return found

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return num_rows(self.batch())


def feed_of(micro: MicroBatch) -> Feed:
    """Return a micro-batch that was held by the recorder."""
    tensors = [tensor.detach().clone() for tensor in micro.to_write()]
    return Feed(micro.tree.plain, tensors, micro.batch, micro.moment, micro.last)


def feed_of_batch(batch: Any, moment: Moment, last: bool | None) -> Feed:
    """Return a batch as a feed."""
    tree = flatten(batch)
    return Feed(
        tree.plain, [tensor.detach().clone() for tensor in tree.tensors], batch, moment, last
    )


class StepReached(BaseException):
    """Ends a step function that is run only up to its optimizer's step."""


class Witness(Observer):
    """Notes what the hooks see, and ends the step before an optimizer moves if that is wanted."""

    def __init__(self, *, moves: bool) -> None:
        self.told: list[float] = []
        """The losses that the user reported."""
        self.optimizers: list[torch.optim.Optimizer] = []
        """Those that moved, or were about to."""
        self.norm: Any = None
        """The gradient norm that was clipped."""
        self._moves = moves

    def loss_reported(self, loss: Tensor, token_losses: Tensor | None = None) -> None:
        """Note the loss."""
        del token_losses
        self.told.append(float(loss.detach()))

    def norm_seen(self, norm: Any) -> None:
        """Note the norm."""
        self.norm = norm

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the optimizer."""
        self.optimizers.append(optimizer)
        if not self._moves:
            raise StepReached


class Bench:
    """Runs feeds through the step function of a training."""

    def __init__(
        self,
        training: Training,
        updates: Sequence[Sequence[Feed]],
        *,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """`updates` are the micro-batches of the first updates."""
        self.training = training
        self.updates = updates
        self.reach = Reach(training)
        self.names = self.reach.names()
        self._ends = time.monotonic() + max_seconds

    @property
    def first(self) -> Feed:
        """The first micro-batch."""
        return self.updates[0][0]

    def has_time(self) -> bool:
        """Return whether there is time for another experiment, on every rank."""
        return not ranks.any_rank(time.monotonic() > self._ends)

    def forward(
        self,
        feed: Feed,
        *,
        tensors: Sequence[Tensor] | None = None,
        changed: Mapping[int, Tensor] | None = None,
        watch_modules: bool = False,
        seed: int | None = None,
    ) -> Look:
        """Run a step up to its first backward pass. `tensors` and `changed` replace those of the
        batch, and tokens on their way in; `seed` gives it other random numbers.
        """
        names = self.names if watch_modules else None
        with undone(self.training, self.reach):
            return self.forward_here(
                feed, tensors=tensors, watch=ForwardWatch(names=names, changed=changed), seed=seed
            )

    def forward_here(
        self,
        feed: Feed,
        *,
        tensors: Sequence[Tensor] | None = None,
        watch: ForwardWatch | None = None,
        seed: int | None = None,
    ) -> Look:
        """Run a step up to its first backward pass without putting anything back."""
        watch = watch or ForwardWatch()
        returned = None
        with self._watched(feed, Witness(moves=False), watch):
            if seed is not None:
                torch.manual_seed(seed)
            returned = self._call(feed, tensors)
        if watch.look.loss is None:
            found = returned_loss(returned)
            watch.look.returned = None if found is None else float(found)
        return watch.look

    def gradients(self, feeds: Sequence[Feed]) -> tuple[dict[Tensor, Tensor], list[Look]]:
        """Run the micro-batches of an update up to the optimizer's step; return the gradients, and
        what each forward pass did. Use it inside `undone`.
        """
        looks = []
        parameters = self.reach.parameters()
        for feed in feeds:
            watch = ForwardWatch(
                stops=False, parameters=() if self.training.is_sharded else parameters
            )
            witness = Witness(moves=False)
            with self._watched(feed, witness, watch):
                self._call(feed, None)
            watch.look.clipped = None if witness.norm is None else float(witness.norm)
            looks.append(watch.look)
        found = {}
        for parameter in parameters:
            if parameter.grad is not None:
                found[parameter] = parameter.grad.detach().clone()
        return found, looks

    def update(self, feeds: Sequence[Feed]) -> float | None:
        """Make a whole update, and return the loss of its first forward pass. Use it inside
        `undone` with weights.
        """
        loss = None
        for feed in feeds:
            watch = ForwardWatch(stops=False)
            returned = None
            with self._watched(feed, Witness(moves=True), watch):
                returned = self._call(feed, None)
            if loss is None:
                found = returned_loss(returned)
                loss = watch.look.loss if found is None else float(found)
        return loss

    def _call(self, feed: Feed, tensors: Sequence[Tensor] | None) -> Any:
        return self.training.call(feed.batch(tensors), feed.last)

    @contextmanager
    def _watched(self, feed: Feed, witness: Witness, watch: ForwardWatch) -> Iterator[None]:
        training = self.training
        eager: AbstractContextManager[object] = nullcontext()
        if training.is_compiled:
            eager = torch.compiler.set_stance("force_eager")
        with ExitStack() as stack:
            stack.enter_context(eager)
            stack.enter_context(training.hooks.observed_by(witness))
            stack.enter_context(back_at(feed.moment, training.device_type))
            stack.enter_context(watch)
            try:
                yield
            except (BackwardReached, StepReached):
                pass


@contextmanager
def in_evaluation(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put modules into evaluation mode within a block."""
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
